"""``interp llm``: language models as online learners.

``play`` plays them, ``traces`` scores what they said, ``opened`` looks into them.
"""
