"""Domain types shared by running and analysing a study: jobs, trial tables, selections."""
