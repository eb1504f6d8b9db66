"""The probe guest: a small Linux from the distribution's own packages, all in RAM, that answers within seconds.

    image = build(default_cache(), progress=print)

The kernel is the distribution's, taken out of its bzImage as an ELF file, which QEMU starts through its PVH entry with
`-kernel`. `init.c` is the first process: it starts the guest agent, then loads the driver of the NIC and configures it as
the kernel command line says. What scripts in the guest should know:

- The agent answers before the network is set up. `/run/ready` appears when it is; a problem is a line `labctl: ...` in
  the kernel log, and the agent still answers. The first NIC is `eth0`.
- The link may come later: with e1000e 2 s after `/run/ready` (its driver looks every 2 s), with the others at once.
  `/sys/class/net/eth0/carrier` says it. With e1000 the first packet may be lost and ARP then takes a second.
- The shell is busybox's, which prefers its own commands to programs of the same name: nanoseconds need `/bin/date`.
- The SSH server runs only with `labctl.ssh_key`; its host key is in `/etc/dropbear/dropbear_ed25519_host_key.pub`.
  Without a source of random numbers (a CPU model with RDRAND, or virtio-rng, which costs 0.2 s of booting) its start
  takes some seconds longer.
- Mitigations, sysctls and offloads are the distribution's defaults.
- A guest that panics resets at once: with `-no-reboot`, or `<on_reboot>destroy</on_reboot>`, it ends.
- A guest that was started from an image needs the same kernel and initrd on the host that it migrates to. The image
  before the newest is kept for that.

How long a boot takes
---------------------
From the start of QEMU to the agent's first answer; QEMU 7.2, TCG, q35, 1 vCPU, 192 MiB, virtio-net, Debian 12 (6.1),
2 cores which others kept busy (load 3 to 7). So the CPU seconds that QEMU used until then say more than wall time: given
are the smallest of n boots, in random order, and the difference to the image as it is.

| as built                                    | 1.60 to 1.64 s CPU, 1.73 s wall (medians 1.79 and 2.0 to 2.3; n = 7) |

| kernel and initramfs                        | s CPU | n |
|---------------------------------------------|-------|---|
| bzImage instead of the ELF file             | +3.0  | 5 |
| initramfs compressed with gzip              | +0.5  | 5 |
| only `quiet panic=-1 net.ifnames=0`         | +0.5  | 9 |
| without `cryptomgr.notests`                 | +0.3  | 9 |
| without `rodata=off`                        | +0.06 | 9 |
| without `initcall_blacklist=...` (tracefs)  | +0.05 | 9 |
| modules with their signatures               | +0.1  | 5 |

No difference was seen (n = 7 to 9) for `mitigations=off`, `audit=0 apparmor=0 selinux=0`, `raid=noautodetect`,
`random.trust_cpu=on`, `8250.nr_uarts=1`, `i8042.noaux i8042.nopnp`, `rcupdate.rcu_expedited=1`, `noreplace-paravirt`,
nor for modules without BTF and an initramfs smaller by a third. Most of what is left is the kernel patching itself
(0.27 s), its calibration of the local APIC timer (0.13 s), ACPI (0.1 s) and the firmware (0.14 s).

What to give QEMU (n = 7)
-------------------------
| setting                                           | s CPU |
|---------------------------------------------------|-------|
| NIC with its option ROM (no `rombar=0`, `<rom enabled='no'/>`) | +0.06 |
| a USB controller with a tablet                    | +0.11 |
| VGA                                               | +0.03 |
| 8 more PCIe root ports                            | +0.25 |
| machine pc instead of q35 without more root ports | +0.22 |
| 2 vCPUs, 4 vCPUs                                  | +0.14, +1.1 |
| `-cpu max` instead of the default                 | +0.17 |
| memory balloon                                    | +0.08 |
| virtio-rng                                        | +0.16 |
| serial console with the kernel's log              | +0.04 |
| qboot instead of SeaBIOS                          | -0.10 |
| 128 or 512 MiB                                    | 0     |

So: no USB controller, no VGA, no balloon, no option ROM, and with q35 no more root ports than devices. Start QEMU with
`-nodefaults`, as libvirt does.
"""

from workers.locallab.image.build import ProbeImage, build, current, default_cache

__all__ = ["ProbeImage", "build", "current", "default_cache"]
