"""What the pytest plugin is made of; ``inbackward.plugin`` wires it to pytest's hooks. Nothing here is public."""
