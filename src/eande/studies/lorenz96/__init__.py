"""The paper's Lorenz 96 study: the posterior of two forcing parameters is a ring.

main, timing, variants    one call per table or figure
sizes, methods            what is run: how much of it, which methods with which settings
data, networks            simulations; encoders and the views they are trained on
ring, physics             what is measured of a posterior; F by physics alone
baselines, through_sbi    other methods, on sbi's networks and losses
tables, pictures, page    how the results are shown
"""
