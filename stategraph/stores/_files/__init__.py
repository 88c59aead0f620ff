"""Files and folders of stores."""
