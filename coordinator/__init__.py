"""The rules of Decoupled DiLoCo: pure Python and NumPy, no Ray, no clock, no disk, no socket."""
