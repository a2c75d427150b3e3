"""Language models as online learners (paper, sections 5.3 and F.3): play them, keep every word, read the traces.

- ``schemes``, ``prompts``, ``protocol``: what is said, and the pure state machine of one episode.
- ``settings``, ``plan``, ``backend``, ``client``, ``trace``, ``runner``: which episodes, who answers, and playing them
  so that nothing is lost.
- ``agents``, ``demo``: scripted agents of known behaviour that speak the same protocol, and the experiment with them.
- ``local``, ``opened``: a model in this process, and the same model opened while it learns.
- ``runs``, ``loading``, ``importer``, ``attempts``: played episodes as data, from our traces or other people's results.
- ``scores``, ``behaviour``, ``notes``, ``note_counts``, ``note_table``, ``paper``: regret beside the baselines, what a
  model acts like, what its notes say, and the paper's numbers; ``tables`` writes them.

Nothing here imports ``httpx`` until a server is asked (``pip install 'latent-context-interp[llm]'``), nor torch until a
model runs in this process.
Not in this room: the episodes (``interp.tasks.experts``), the baselines (``interp.tasks.experts.predictors``), pictures
(``reports.llm``).
"""
