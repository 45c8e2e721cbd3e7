"""dlapp-notebook: JupyterLab as an application with the image, workspace and GPUs of a properties file.

- `session`: the application, its start and its end;
- `files`: fetching new and changed files into the user's own workspace.
"""
