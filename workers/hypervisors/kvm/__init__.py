"""KVM and QEMU by libvirt; the only folder that imports the libvirt library."""
