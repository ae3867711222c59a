"""The reference trainer: a small 3D-parallel language model on PyTorch-native parts."""
