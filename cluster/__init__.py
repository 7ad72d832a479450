"""Everything that can fail for reasons outside the program: Ray, clocks, disks, people."""
