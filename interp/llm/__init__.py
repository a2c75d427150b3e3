"""Language models as online learners (paper, sections 5.3 and F.3): play them, keep every word, read the traces.

- ``schemes``, ``protocol``: what is said, the pure state machine of one episode, and the trace that it is kept in.
- ``plan``, ``backend``, ``client``, ``runner``: which episodes, who answers (a server, or a scripted agent of known
  behaviour), and playing them so that nothing is lost.
- ``local``, ``opened``: a model in this process, and the same model opened while it learns.
- ``runs``, ``loading``, ``importer``: played episodes as data, from our traces or other people's results.
- ``scores``, ``notes``: regret beside the baselines and the paper's numbers, what a model's notes say,
  and tables of both. ``note_tests``: does a note carry the state? Edit it, and go on from there.

Nothing here imports ``httpx`` until a server is asked (``pip install 'latent-context-interp[llm]'``), nor torch until a
model runs in this process.
Not in this room: which algorithm a model plays like (``circuits.compare.choices``); the episodes
(``interp.tasks.experts``), the baselines (``interp.tasks.experts.predictors``), pictures (``reports.llm``).
"""
