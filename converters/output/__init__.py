"""Where files go: folders of this machine and object stores."""
