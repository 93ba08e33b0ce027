"""From one machine to a cluster: `ray up` makes it, these few files use it from outside.

On the laptop: `head` (who and where the head is, ssh and tunnel), `attach` (start a study there and
follow it), `files` (write cluster files), `names` (what may stand in them). On the head: `detached`
(a study that outlives its starter), `sent` (the study file that came) and `services` (the MLflow
server). Nothing but ssh connects the two sides.
"""
