"""Reference algorithms, baselines and their scores, vectorised over episodes in NumPy.

``experts`` (weighted majority, baselines, Bayes predictors; ``posterior``, ``assignments``), ``regret`` and
``calibration`` (scores), ``theory`` (checks of the paper's Appendix B); ``tabular`` (learners), ``planning`` (optimal
policies), ``returns``, ``agreement`` and ``rates`` (what a policy or a decoded table does). No model lives here.
"""
