"""What the tasks that ship ask of training, a module a task; a record finds its goal here by name."""
