"""tvm_ext"""
