"""The report: everything that is known of a posterior, on one page that needs nothing else.

``report.py`` is what users call; ``sections/`` says what goes in, as data (``blocks.py``);
``judging.py`` what checks mean and what to do; ``page.py`` makes the page of it, from
``templates/``, and ``document.py`` the JSON file beside it.
"""
