"""What was written for the earlier AgentJet (0.0.1): accepted where it is code of the user's own, refused with its new form elsewhere.

Classes of workflows and judges run unchanged (`programs`), under the names and import paths that they had (`modules`). Command
lines (`command_line`) and job files (`job_file`) are refused in one line that gives, or says how to get, the new form.
"""
