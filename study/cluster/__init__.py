"""Studies on a cluster: `ray up` creates it, and these modules use it from outside.

On the laptop: `head` (address of the head, ssh and tunnels), `tunnel`, `client` (start a study
there and follow it), `templates` (write cluster files) and `validation` (allowed names). On the
head: `head_process` (a study that outlives the process that started it), `submitted_file` (the
study file that was sent) and `supervisor` (the MLflow server). Only ssh connects the two sides.
`detached` and `services` are aliases for clients and cluster files of other versions.
"""
