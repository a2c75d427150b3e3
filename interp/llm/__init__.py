"""Language models as online learners (paper, sections 5.3 and F.3): play them, keep every word, read the traces.

- ``schemes``, ``prompts``, ``protocol``: what is said, and the pure state machine of one episode.
- ``settings``, ``plan``, ``client``, ``trace``, ``runner``: which episodes, and playing them so that nothing is lost.
- ``agents``: scripted agents of known behaviour that speak the same protocol.
- ``runs``, ``loading``, ``importer``: played episodes as data, from our traces or other people's results.
- ``scores``, ``behaviour``, ``notes``, ``note_table``, ``paper``: regret beside the baselines, what a model acts like,
  what its notes say, and the paper's numbers; ``tables`` writes them.

Nothing here imports ``openai`` until a model is run (``pip install 'latent-context-interp[llm]'``), nor torch ever.
Not in this room: the episodes (``interp.tasks.experts``), the baselines (``interp.tasks.experts.predictors``), pictures
(``reports.llm``).
"""
