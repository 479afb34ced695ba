"""Where other machines reach this one."""

import socket
from types import SimpleNamespace

import psutil

from holdfast.machine import network
from holdfast.machine.network import free_port, network_towards, own_address


def test_the_address_that_was_given_counts(monkeypatch):
    monkeypatch.setenv("HOLDFAST_NODE_ADDRESS", "10.1.2.3")
    assert own_address() == "10.1.2.3"
    monkeypatch.delenv("HOLDFAST_NODE_ADDRESS")
    assert own_address()


def test_the_network_of_an_address_is_found_by_name():
    name = network_towards("127.0.0.1")
    assert any(one.address == "127.0.0.1" for one in psutil.net_if_addrs()[name])
    assert network_towards("no-such-machine.invalid") == ""


def test_loopback_name_resolves_to_the_main_network(monkeypatch):
    networks = {"lo": [SimpleNamespace(address="127.0.0.1")], "eth0": [SimpleNamespace(address="10.1.2.3")]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: networks)
    ways = {"node-1": "127.0.0.1", network._ANYWHERE: "10.1.2.3"}  # as Debian has it in /etc/hosts
    monkeypatch.setattr(network, "_address_towards", lambda host: ways.get(host, ""))
    assert network_towards("node-1") == "eth0"
    ways.pop(network._ANYWHERE)
    assert network_towards("node-1") == ""


def test_a_free_port_can_be_listened_at():
    with socket.socket() as one:
        one.bind(("127.0.0.1", free_port()))
