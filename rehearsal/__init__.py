"""A rehearsal of `skytrain launch` on this machine: rented machines are namespaces, AWS is moto and SeaweedFS.

    make rehearse                      all scenarios
    make rehearse ONLY="done budget"   some of them
    python -m rehearsal --list

What is real: `skytrain launch`, its requests, the boot script that it made, the node agent, torchrun, the store's
objects. What stands in for AWS is in this package, and its docstrings say how it differs:

account.py      EC2, Auto Scaling, quotas, prices and the account's base: moto, with what it lacks
hypervisor.py   turns instances of that account into hosts and back, fires scheduled actions, counts machine-seconds
hosts.py        a host: network, process, mount, host name and time namespaces on a bridge
init.py         the first process of a host: cloud-init, systemd and shutdown, as far as the boot script uses them
metadata.py     IMDSv2 of a host
laptop.py       the computer that launches: a folder with plan.json, and the command
"""
