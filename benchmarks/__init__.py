"""Speed and memory against other loaders, measured in fresh processes. Run: python -m benchmarks.run"""
