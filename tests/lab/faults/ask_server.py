"""Asks a server and waits for the whole answer."""

import socket
import sys

import steps

steps.enter("load")
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as asked:
    asked.sendall(b"GET / HTTP/1.0\r\n\r\n")
    while asked.recv(100):
        pass
