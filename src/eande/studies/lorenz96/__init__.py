"""The paper's Lorenz 96 study: the posterior of two forcing parameters is a ring.

terms, recipes            what every method of a comparison gets; how each is trained
comparisons, search       the tables: rows, each a recipe under terms; settings found before them
campaign, crossfit        runs, one by one or side by side; one exponent for any method
data, networks, sizes     simulations; encoders and their views; how much of it is run
ring, physics             what is measured of a posterior; F by physics alone
baselines, through_sbi    other methods, on sbi's networks and losses
timing                    how long inference and training take
effects, tables           differences between methods, with intervals; a line for a run
pictures, page, schema    how the results are shown, and how they are stored
"""
