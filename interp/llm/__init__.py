"""Language models as online learners (paper, sections 5.3 and F.3): play them, keep every word, read the traces.

What is said stands in ``schemes`` and ``protocol``, who answers in ``backend``, ``client``, ``local`` and ``opened``;
``plan`` and ``runner`` play. ``runs``, ``loading`` and ``importer`` give played episodes as data, ``scores`` and
``notes`` what they show. Nothing here imports ``httpx`` until a server is asked, nor torch until a model runs
in this process.
"""
