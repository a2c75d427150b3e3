"""Language models as online learners (paper, sections 5.3 and F.3): play the task, record every
word, read the traces.

``schemes`` and ``protocol`` define the conversation; ``backend``, ``client``, ``local`` and
``opened`` reach the model; ``plan`` and ``runner`` play. ``runs``, ``loading`` and ``importer``
return played episodes as data; ``scores`` and ``notes`` analyse them. ``httpx`` is imported only
for a server, and torch only for a model in this process.
"""
