"""Measurements for models of Q-learning: agreement with the Q-table, the discount that choices
follow, returns.
"""
