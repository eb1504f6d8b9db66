"""vSphere by vCenter Server or one ESXi host; the only folder that imports pyvmomi."""
