"""From a study file to a report: what the commands do, step by step, in a folder of its own.

``study.py`` reads the file, ``folder.py`` knows what lies where in ``runs/<study>/``, ``steps.py``
takes the steps, ``template.py`` writes a first study file, ``look.py`` says what is in a path.
"""
