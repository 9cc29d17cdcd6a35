"""What tests share: a real manager as a child process, programs in its environments, clients that
speak the wire by hand.
"""
