"""A pipeline on real Spark, through everything that can fail; then every record is counted.

``python -m integration.chaos --minutes 10 --seed 7``, or ``make chaos``. ``docs/contributing.md`` says what
runs, what fails and what has to hold. In short::

    plan       draws the faults from the seed          run       makes them while drivers come and go
    pipeline   the driver: two queries, one behind the other
    weather    what the model of the service does      strikes   what happens to processes
    follower   how far a query is, by its checkpoint   history   what has happened
    oracle     counts every record                     report    says so
    warden     leaves no process behind, whatever happens

What it rests on: the model of the service knows every record that was put and every record that was copied;
the checkpoint says where each batch ends; the manifests say which files count. Nothing that a driver says is
believed.
"""
