"""Parts that tests share: a real manager as a child process, programs in its environments.

Also clients that speak the wire by hand.
"""
