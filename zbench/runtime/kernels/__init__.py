"""What a rank computes with: attention kernels, elementwise work, rows and partial sums."""
