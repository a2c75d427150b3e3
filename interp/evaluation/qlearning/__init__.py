"""Measurements for models of Q-learning: agreement with the Q-table, the discount factor that
choices follow, and returns.
"""
