"""Language models as online learners (paper, sections 5.3 and F.3): let them play the experts task,
record every message, and analyse the recordings (*traces*).

In each round a model gets the advice of several experts, predicts a binary outcome, and is told the
outcome. In some conditions it also writes a *note* after each round, which it reads in the next.

* ``schemes``, ``protocol``: the messages of a round, and the course of an episode;
* ``backend``, ``client``, ``local``, ``opened``: what answers: scripted agents, servers, models in
  this process, models with hooks;
* ``plan``, ``runner``: choose the episodes, and play them;
* ``runs``, ``loading``, ``importer``, ``transcripts``: played episodes as data;
* ``scores``, ``notes``: analyse them.

``httpx`` is imported only for a server, and torch only for a model in this process.
"""
