/*
 * The first process of the probe guest: mounts, drivers, guest agent, network, SSH; then it looks after them.
 *
 * It understands these words of the kernel command line:
 *   labctl.address=198.18.1.5/22   static IPv4 address of the first network interface that is not loopback
 *   labctl.gateway=198.18.0.1      default route
 *   labctl.mtu=9000                MTU of that interface, bytes
 *   labctl.hostname=NAME
 *   labctl.ssh_key=BASE64          a line for authorized_keys; starts the SSH server, with a host key made now
 *
 * /run/ready appears when the drivers are loaded and the network is set up; the guest agent answers earlier.
 * Devices plugged in later are found, too.
 *
 * /lib/drivers says which modules a device needs: `stage pattern module...`, in the order of loading.
 * Stage `agent` is what the guest agent's channel needs and is loaded first.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <net/route.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define AGENT_PORT "org.qemu.guest_agent.0"
#define AGENT_NODE "/dev/virtio-ports/" AGENT_PORT
#define PORT_CLASS "/sys/class/virtio-ports"
#define READY "/run/ready"
#define HOST_KEY "/etc/dropbear/dropbear_ed25519_host_key"
#define PORT_WAIT_MS 1000
#define RESTART_PAUSE_MS 500
#define NEGOTIATION_MS 600
#define MAX_OPEN_FILES 65536

struct service {
    const char *name;
    char *const *argv;
    void (*prepare)(void); /* runs in the child, before the program */
    bool wanted;
    pid_t pid;
    long long started_ms;
};

static void make_host_key(void);
static char *const agent_argv[] = {"/bin/qemu-ga", "--method=virtio-serial", "--path=" AGENT_NODE, "--statedir=/run", NULL};
static char *const ssh_argv[] = {"/bin/dropbear", "-F", "-s", "-r", HOST_KEY, NULL};
static struct service services[] = {
    {.name = "qemu-ga", .argv = agent_argv},
    {.name = "dropbear", .argv = ssh_argv, .prepare = make_host_key},
};
static struct service *const agent = &services[0], *const ssh = &services[1];
#define SERVICES (sizeof services / sizeof *services)

static char command_line[4096];
static unsigned configured_index;

/* ---- small things ---- */

static void complain(const char *format, ...)
{
    char text[448], line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* 3: an error, as in syslog. Readers see a line when it has ended. */
    snprintf(line, sizeof line, "<3>labctl: %s\n", text);
    int fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, line, strlen(line)) < 0)
            perror("/dev/kmsg");
        close(fd);
    }
}

static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static bool read_line(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, size - 1);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = 0;
    text[strcspn(text, "\n")] = 0;
    return true;
}

static void write_file(const char *path, const void *content, size_t size, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0 || write(fd, content, size) != (ssize_t)size)
        complain("cannot write %s: %m", path);
    if (fd >= 0)
        close(fd);
}

/* The value of a word of the kernel command line, or NULL. */
static const char *option(const char *name)
{
    static char value[4096];
    size_t length = strlen(name);
    for (const char *word = command_line; *word;) {
        size_t end = strcspn(word, " ");
        if (end > length && !strncmp(word, name, length) && word[length] == '=') {
            snprintf(value, sizeof value, "%.*s", (int)(end - length - 1), word + length + 1);
            return value;
        }
        word += end + strspn(word + end, " ");
    }
    return NULL;
}

/* ---- the file system ---- */

static void mount_all(void)
{
    static const struct { const char *type, *at, *options; unsigned long flags; } mounts[] = {
        {"devtmpfs", "/dev", "mode=0755", MS_NOSUID},
        {"proc", "/proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC},
        {"sysfs", "/sys", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC},
        {"tmpfs", "/run", "mode=0755", MS_NOSUID | MS_NODEV},
        {"tmpfs", "/tmp", "mode=1777", MS_NOSUID | MS_NODEV},
        {"devpts", "/dev/pts", "mode=0620,ptmxmode=0666,gid=5", MS_NOSUID | MS_NOEXEC},
        {"tmpfs", "/dev/shm", "mode=1777", MS_NOSUID | MS_NODEV},
    };
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++) {
        mkdir(mounts[i].at, 0755);
        if (mount(mounts[i].type, mounts[i].at, mounts[i].type, mounts[i].flags, mounts[i].options))
            complain("cannot mount %s: %m", mounts[i].at);
    }
    mkdir("/dev/virtio-ports", 0755);
    symlink("/proc/self/fd", "/dev/fd");
    symlink("/proc/self/fd/0", "/dev/stdin");
    symlink("/proc/self/fd/1", "/dev/stdout");
    symlink("/proc/self/fd/2", "/dev/stderr");
}

/* ---- drivers ---- */

static void load_module(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "/lib/modules/%s.ko", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
        complain("cannot load %s: %m", path);
    if (fd >= 0)
        close(fd);
}

/* Loads what `modalias` needs, if it is of that stage (NULL: any). A line that was used is blanked: once is enough. */
static void load_for(const char *modalias, const char *stage)
{
    static char table[65536];
    static ssize_t size = -1;
    if (size < 0) {
        int fd = open("/lib/drivers", O_RDONLY | O_CLOEXEC);
        size = fd < 0 ? 0 : read(fd, table, sizeof table - 1);
        if (size <= 0 || size == sizeof table - 1)
            complain("cannot read all of /lib/drivers");
        close(fd);
    }
    for (char *line = table; line < table + size; line += strcspn(line, "\n") + 1) {
        char copy[1024], *state, *word;
        snprintf(copy, sizeof copy, "%.*s", (int)strcspn(line, "\n"), line);
        if (*copy == '#' || !(word = strtok_r(copy, " ", &state)) || (stage && strcmp(word, stage)))
            continue;
        if (!(word = strtok_r(NULL, " ", &state)) || fnmatch(word, modalias, 0))
            continue;
        *line = '#';
        while ((word = strtok_r(NULL, " ", &state)))
            load_module(word);
    }
}

static void load_drivers(const char *stage)
{
    static const char *const buses[] = {"/sys/bus/pci/devices", "/sys/bus/virtio/devices"};
    for (size_t i = 0; i < sizeof buses / sizeof *buses; i++) {
        DIR *directory = opendir(buses[i]);
        struct dirent *entry;
        while (directory && (entry = readdir(directory))) {
            char path[512], modalias[256];
            snprintf(path, sizeof path, "%s/%s/modalias", buses[i], entry->d_name);
            if (*entry->d_name != '.' && read_line(path, modalias, sizeof modalias))
                load_for(modalias, stage);
        }
        if (directory)
            closedir(directory);
    }
}

/* ---- services ---- */

static void make_host_key(void)
{
    if (!access(HOST_KEY, R_OK))
        return;
    mkdir("/etc/dropbear", 0700);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(HOST_KEY ".pub", O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(fd, 1);
        execl("/bin/dropbearkey", "dropbearkey", "-t", "ed25519", "-f", HOST_KEY, NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
}

static void start(struct service *service)
{
    service->wanted = true;
    service->started_ms = now_ms();
    service->pid = fork();
    if (service->pid)
        return;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    int in = open("/dev/null", O_RDONLY), log = open("/run/services.log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(in, 0);
    dup2(log, 1);
    dup2(log, 2);
    close(in);
    close(log);
    if (service->prepare)
        service->prepare();
    execv(service->argv[0], service->argv);
    complain("cannot run %s: %m", service->argv[0]);
    _exit(127);
}

/* Gives the agent's port its usual name, as udev would. */
static bool name_agent_port(void)
{
    char path[512], name[128];
    struct dirent *entry;
    bool found = false;
    DIR *directory = opendir(PORT_CLASS);
    while (directory && !found && (entry = readdir(directory))) {
        snprintf(path, sizeof path, PORT_CLASS "/%s/name", entry->d_name);
        if (*entry->d_name == '.' || !read_line(path, name, sizeof name) || strcmp(name, AGENT_PORT))
            continue;
        snprintf(path, sizeof path, "/dev/%s", entry->d_name);
        unlink(AGENT_NODE);
        found = !symlink(path, AGENT_NODE);
    }
    if (directory)
        closedir(directory);
    return found;
}

static void start_agent_if_possible(void)
{
    if (!agent->wanted && name_agent_port())
        start(agent);
}

static int decode_base64(const char *text, char *out)
{
    unsigned bits = 0, count = 0;
    int n = 0;
    for (; *text && *text != '='; text++) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        char c = *text == '-' ? '+' : *text == '_' ? '/' : *text;
        const char *digit = strchr(digits, c);
        if (!digit)
            return -1;
        bits = bits << 6 | (unsigned)(digit - digits);
        if ((count += 6) >= 8)
            out[n++] = (char)(bits >> (count -= 8));
    }
    return n;
}

static void start_ssh_if_asked(void)
{
    const char *text = option("labctl.ssh_key");
    char key[4096];
    if (!text)
        return;
    int size = decode_base64(text, key);
    if (size <= 0) {
        complain("labctl.ssh_key is not base64");
        return;
    }
    if (key[size - 1] != '\n')
        key[size++] = '\n';
    mkdir("/root/.ssh", 0700);
    write_file("/root/.ssh/authorized_keys", key, (size_t)size, 0600);
    start(ssh);
}

static void reap(void)
{
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        for (size_t i = 0; i < SERVICES; i++)
            if (services[i].pid == pid)
                services[i].pid = 0;
}

/* Restarts what died. Returns how long to sleep until the next restart is due, in ms; -1: for ever. */
static int restart_dead(void)
{
    int pause = -1;
    for (size_t i = 0; i < SERVICES; i++) {
        struct service *service = &services[i];
        if (!service->wanted || service->pid)
            continue;
        long long left = service->started_ms + RESTART_PAUSE_MS - now_ms();
        if (left > 0) {
            pause = (int)left;
            continue;
        }
        complain("%s ended and is started again", service->name);
        start(service);
    }
    return pause;
}

/* ---- network ---- */

static void require_ioctl(int fd, unsigned long request, void *argument, const char *what)
{
    if (ioctl(fd, request, argument))
        complain("cannot set %s: %m", what);
}

static void set_address(int fd, struct ifreq *request, const char *text)
{
    char address[64];
    snprintf(address, sizeof address, "%s", text);
    char *slash = strchr(address, '/');
    int prefix = slash ? atoi(slash + 1) : 32;
    if (slash)
        *slash = 0;
    struct sockaddr_in *in = (struct sockaddr_in *)&request->ifr_addr;
    memset(in, 0, sizeof *in);
    in->sin_family = AF_INET;
    if (prefix < 0 || prefix > 32 || inet_pton(AF_INET, address, &in->sin_addr) != 1) {
        complain("labctl.address is not an IPv4 address with a prefix length: %s", text);
        return;
    }
    require_ioctl(fd, SIOCSIFADDR, request, "address");
    in->sin_addr.s_addr = prefix ? htonl(~0u << (32 - prefix)) : 0;
    require_ioctl(fd, SIOCSIFNETMASK, request, "netmask");
}

static void set_up(int fd, struct ifreq *request)
{
    if (!ioctl(fd, SIOCGIFFLAGS, request)) {
        request->ifr_flags |= IFF_UP;
        require_ioctl(fd, SIOCSIFFLAGS, request, request->ifr_name);
    }
}

static void set_gateway(int fd, const char *text)
{
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    struct sockaddr_in *gateway = (struct sockaddr_in *)&route.rt_gateway;
    route.rt_dst.sa_family = route.rt_genmask.sa_family = gateway->sin_family = AF_INET;
    if (inet_pton(AF_INET, text, &gateway->sin_addr) != 1)
        complain("labctl.gateway is not an IPv4 address: %s", text);
    else
        require_ioctl(fd, SIOCADDRT, &route, "gateway");
}

/*
 * QEMU's e1000 negotiates its link for half a second from the loading of its driver, or a change of its MTU. Brought up
 * before that, the driver finds no link and looks again only two seconds later; so wait for it here.
 */
static void wait_for_negotiation(const char *interface)
{
    char path[256], target[256];
    snprintf(path, sizeof path, "/sys/class/net/%s/device/driver", interface);
    ssize_t size = readlink(path, target, sizeof target - 1);
    target[size > 0 ? size : 0] = 0;
    const char *driver = strrchr(target, '/');
    if (driver && !strcmp(driver, "/e1000"))
        usleep(NEGOTIATION_MS * 1000);
}

/* The interface with the lowest index that is not loopback and not yet looked after; all others are brought up too. */
static void configure_network(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct if_nameindex *all = if_nameindex(), *first = NULL;
    for (struct if_nameindex *one = all; one && one->if_index; one++)
        if (strcmp(one->if_name, "lo") && (!first || one->if_index < first->if_index))
            first = one;
    if (first && first->if_index != configured_index) {
        struct ifreq request = {0};
        const char *value;
        configured_index = first->if_index;
        strncpy(request.ifr_name, first->if_name, sizeof request.ifr_name - 1);
        if ((value = option("labctl.mtu"))) {
            request.ifr_mtu = atoi(value);
            require_ioctl(fd, SIOCSIFMTU, &request, "MTU");
        }
        wait_for_negotiation(first->if_name);
        if ((value = option("labctl.address")))
            set_address(fd, &request, value);
        set_up(fd, &request);
        if ((value = option("labctl.gateway")))
            set_gateway(fd, value);
    }
    for (struct if_nameindex *one = all; one && one->if_index; one++) {
        struct ifreq request = {0};
        strncpy(request.ifr_name, one->if_name, sizeof request.ifr_name - 1);
        set_up(fd, &request);
    }
    if_freenameindex(all);
    close(fd);
}

/* ---- events ---- */

static int open_uevents(void)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = 1};
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address))
        complain("cannot hear of devices: %m");
    return fd;
}

static int open_signals(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void drain(int fd)
{
    static char buffer[8192];
    while (read(fd, buffer, sizeof buffer) > 0 || errno == ENOBUFS)
        ;
}

/* The port comes a moment after its driver; without the driver there will be none. */
static void wait_for_agent_port(int uevents)
{
    long long until = now_ms() + PORT_WAIT_MS;
    while (!access(PORT_CLASS, F_OK) && !agent->wanted && now_ms() < until) {
        drain(uevents);
        start_agent_if_possible();
        struct pollfd wait_for = {.fd = uevents, .events = POLLIN};
        if (!agent->wanted)
            poll(&wait_for, 1, PORT_WAIT_MS / 20);
    }
}

static void look_after_everything(int uevents, int signals)
{
    for (;;) {
        struct pollfd wait_for[] = {{.fd = uevents, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        poll(wait_for, 2, restart_dead());
        drain(signals);
        reap();
        if (wait_for[0].revents) {
            drain(uevents);
            load_drivers(NULL);
            start_agent_if_possible();
            configure_network();
        }
    }
}

int main(void)
{
    const char *value;
    mount_all();
    read_line("/proc/cmdline", command_line, sizeof command_line);
    struct rlimit files = {MAX_OPEN_FILES, MAX_OPEN_FILES};
    setrlimit(RLIMIT_NOFILE, &files);
    setenv("PATH", "/bin:/sbin:/usr/bin:/usr/sbin", 1);
    setenv("HOME", "/root", 1);
    chdir("/root");
    if ((value = option("labctl.hostname")))
        sethostname(value, strlen(value));

    int signals = open_signals(), uevents = open_uevents();
    load_drivers("agent");
    wait_for_agent_port(uevents);
    load_drivers(NULL);
    configure_network();
    start_ssh_if_asked();
    write_file(READY, "", 0, 0644);
    look_after_everything(uevents, signals);
}
