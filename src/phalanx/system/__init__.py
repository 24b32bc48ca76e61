"""Services of the host: errors, safe files, CPU cores, memory, signals, compilers. Imports no other package of Phalanx."""
