"""What was written for the earlier AgentJet (0.0.1).

Classes of workflows and judges run unchanged (`programs`), under the names and import paths that they had (`modules`). Command
lines (`command_line`) and job files (`job_file`) run as those of today that they mean, which are printed; `services` are what
their switches start.
"""
