"""What can be got wrong, each as an intervention in the reference loop."""
