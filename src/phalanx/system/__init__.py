"""What the host gives: errors, safe files, processors, memory, signals, compilers. Imports no room."""
