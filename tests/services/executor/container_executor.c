/* A stand-in of Hadoop's native program container-executor, which no Maven repository has: the same command line, exit
   codes, owners, modes and messages on which a NodeManager of Hadoop 3 and dlapp depend.

   Commands: --checksetup, --mount-cgroups, --module-gpu (cgroup v1), and for a user: initialize a container (0), launch
   it (1), signal it (2), delete (3) and list (5) files. Docker, traffic control and sysfs are disabled features.

   Hadoop has no devices controller of cgroup v2: the original denies devices in cgroup v1 alone, also in 3.5, where the
   NodeManager has CPU and memory of v2 (CGroupsHandler.CGroupController: DEVICES is of v1).

   Unlike the original it accepts a configuration below directories that others may write, such as /tmp.

   Source: main.c, container-executor.c, gpu-module.c and util.h of hadoop-yarn-server-nodemanager 3.4; LinuxContainerExecutor
   and PrivilegedOperation, which call it. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <libgen.h>
#include <limits.h>
#include <linux/magic.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  INVALID_ARGUMENT_NUMBER = 1,
  INVALID_COMMAND_PROVIDED = 3,
  INVALID_NM_ROOT_DIRS = 5,
  SETUID_OPER_FAILED = 6,
  UNABLE_TO_EXECUTE_CONTAINER_SCRIPT = 7,
  UNABLE_TO_SIGNAL_CONTAINER = 8,
  INVALID_CONTAINER_PID = 9,
  INITIALIZE_USER_FAILED = 20,
  INVALID_CONTAINER_EXEC_PERMISSIONS = 22,
  INVALID_CONFIG_FILE = 24,
  SETSID_OPER_FAILED = 25,
  WRITE_PIDFILE_FAILED = 26,
  WRITE_CGROUP_FAILED = 27,
  FEATURE_DISABLED = 32,
  COULD_NOT_CREATE_SCRIPT_COPY = 33,
  COULD_NOT_CREATE_CREDENTIALS_FILE = 34,
  COULD_NOT_CREATE_WORK_DIRECTORIES = 35,
  COULD_NOT_CREATE_APP_LOG_DIRECTORIES = 36,
  COULD_NOT_CREATE_TMP_DIRECTORIES = 37,
  FAILED = 255, /* "return -1" of the original */
};

static char configuration[1 << 16];
static uid_t nm_uid;
static gid_t nm_gid;
static uid_t run_uid;
static gid_t run_gid;

static int fail(int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  printf("\n");
  return code;
}

static char *text(const char *format, ...) {
  va_list arguments;
  char *made = NULL;
  va_start(arguments, format);
  if (vasprintf(&made, format, arguments) < 0) abort();
  va_end(arguments);
  return made;
}

/* The value of a key in a section ("" for the top); NULL if it is missing or empty. */
static const char *configured(const char *section, const char *key) {
  static char found[PATH_MAX];
  char current[256] = "", copy[sizeof configuration], *rest = copy, *line;
  strcpy(copy, configuration);
  while ((line = strsep(&rest, "\n")) != NULL) {
    char *equals = strchr(line, '=');
    if (line[0] == '#') continue;
    if (line[0] == '[') {
      snprintf(current, sizeof current, "%.*s", (int)strcspn(line + 1, "]"), line + 1);
    } else if (equals != NULL && strcmp(current, section) == 0) {
      *equals = 0;
      if (strcmp(line, key) == 0) {
        snprintf(found, sizeof found, "%s", equals + 1);
        return found[0] ? found : NULL;
      }
    }
  }
  return NULL;
}

static int is_listed(const char *list, const char *name, const char *separators) {
  char *copy = strdup(list), *rest = copy, *one;
  while ((one = strsep(&rest, separators)) != NULL)
    if (strcmp(one, name) == 0) return 1;
  return 0;
}

static char **split(const char *joined) {
  char **parts = calloc(256, sizeof *parts), *rest = strdup(joined), *one;
  size_t count = 0;
  while (count < 255 && (one = strsep(&rest, "%")) != NULL)
    if (one[0]) parts[count++] = one;
  return parts;
}

static int become(uid_t uid, gid_t gid) {
  if (geteuid() == uid) return 0;
  return seteuid(0) != 0 || setegid(gid) != 0 || seteuid(uid) != 0;
}

static int become_for_ever(uid_t uid, gid_t gid) { return seteuid(0) != 0 || setgid(gid) != 0 || setuid(uid) != 0; }

static int is_only_roots(const char *path) {
  struct stat found;
  if (stat(path, &found) != 0) return 0;
  if (found.st_uid != 0) return fprintf(stderr, "File %s must be owned by root, but is owned by %d\n", path, found.st_uid), 0;
  if (found.st_mode & (S_IWGRP | S_IWOTH))
    return fprintf(stderr, "File %s must not be world or group writable, but is %o\n", path, found.st_mode & 0777), 0;
  return 1;
}

/* Read ../etc/hadoop/container-executor.cfg of the program; check both, as each call does. */
static int check_setup(void) {
  char program[PATH_MAX] = "", *file, *directory;
  struct stat found;
  const char *name;
  struct group *group;
  FILE *opened;
  if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) return INVALID_CONFIG_FILE;
  directory = text("%s/../etc/hadoop", dirname(strdup(program)));
  file = text("%s/container-executor.cfg", directory);
  if (!is_only_roots(directory) || !is_only_roots(file) || (opened = fopen(file, "r")) == NULL) return INVALID_CONFIG_FILE;
  configuration[fread(configuration, 1, sizeof configuration - 1, opened)] = 0;
  fclose(opened);
  name = configured("", "yarn.nodemanager.linux-container-executor.group");
  if (name == NULL)
    return fprintf(stderr, "Can't get configured value for yarn.nodemanager.linux-container-executor.group.\n"), INVALID_CONFIG_FILE;
  if ((group = getgrnam(name)) == NULL)
    return fprintf(stderr, "Can't get group information for %s - unknown.\n", name), INVALID_CONFIG_FILE;
  nm_uid = getuid();
  nm_gid = group->gr_gid;
  if (setuid(0) != 0 || setgid(nm_gid) != 0) errno = 0; /* not a setuid program: the mode says so below */
  if (stat(program, &found) != 0 || found.st_uid != 0 || found.st_gid != getgid() || (found.st_mode & (S_IWOTH | S_IXOTH)) ||
      !(found.st_mode & S_ISUID))
    return fprintf(stderr, "Invalid permissions on container-executor binary.\n"), INVALID_CONTAINER_EXEC_PERMISSIONS;
  return 0;
}

static int set_user(const char *name) {
  const char *lowest = configured("", "min.user.id");
  long minimum = lowest ? atol(lowest) : 1000;
  const char *banned = configured("", "banned.users");
  struct passwd *found;
  if (strcmp(name, "root") == 0) return fail(FAILED, "Running as root is not allowed");
  if (is_listed(banned ? banned : "yarn,mapred,hdfs,bin", name, ",")) return fail(FAILED, "Requested user %s is banned", name);
  if ((found = getpwnam(name)) == NULL) return fail(FAILED, "User %s not found", name);
  const char *allowed = configured("", "allowed.system.users");
  if (found->pw_uid < minimum && !is_listed(allowed ? allowed : "", name, ","))
    return fail(FAILED, "Requested user %s is not whitelisted and has id %d,which is below the minimum allowed %ld", name,
                found->pw_uid, minimum);
  run_uid = found->pw_uid;
  run_gid = found->pw_gid;
  if (initgroups(name, run_gid) != 0) return fail(FAILED, "Error setting supplementary groups for user %s: %m", name);
  return become(run_uid, run_gid) ? FAILED : 0;
}

static int is_of_nodemanager(const char *directory) {
  struct stat found;
  if (stat(directory, &found) != 0) return fail(0, "Error checking file stats for %s -1 %m.", directory);
  if (found.st_uid != nm_uid)
    return fail(0, "Permission mismatch for %s for caller uid: %d, owner uid: %d.", directory, nm_uid, found.st_uid);
  return 1;
}

/* A directory of the user in the NodeManager's: 2750 user:nm_group. */
static int make_user_directory(const char *path) {
  uid_t user = geteuid();
  gid_t group = getegid();
  int failed = 0;
  if (seteuid(0) != 0) return 1;
  if ((mkdir(path, 02750) != 0 && errno != EEXIST) || chown(path, user, nm_gid) != 0 || chmod(path, 02750) != 0)
    failed = fail(1, "Failed to create directory %s - %m", path);
  if (setegid(group) != 0 || seteuid(user) != 0) failed = 1;
  return failed;
}

/* A directory with all above it, as the present user; one that is there must have the mode. */
static int make_directories(const char *path, mode_t mode) {
  char *copy = strdup(path), *at = copy + 1;
  struct stat found;
  for (;;) {
    at += strcspn(at, "/");
    char kept = *at;
    *at = 0;
    if (mkdir(copy, mode) != 0 && (errno != EEXIST && stat(copy, &found) != 0))
      return fail(1, "Can't create directory %s - %m", copy);
    if (!kept) break;
    *at++ = kept;
  }
  if (stat(path, &found) != 0) return fail(1, "Can't create directory %s - %m", path);
  if ((found.st_mode & 0777) != mode)
    return fail(1, "Path %s has permission %o but needs permission %o.", path, found.st_mode & 0777, mode);
  return 0;
}

static int open_as_nodemanager(const char *path) {
  uid_t user = geteuid();
  gid_t group = getegid();
  if (become(nm_uid, nm_gid)) return -1;
  int opened = open(path, O_RDONLY | O_CLOEXEC);
  if (opened < 0) printf("Can't open file %s as node manager - %m\n", path);
  return become(user, group) ? -1 : opened;
}

static int copy_to(int source, const char *path, mode_t mode) {
  char block[1 << 16];
  ssize_t length;
  int target = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (target < 0) return fail(1, "Can't open %s for output - %m", path);
  while ((length = read(source, block, sizeof block)) > 0)
    if (write(target, block, length) != length) return fail(1, "Error writing to %s - %m", path);
  close(source);
  return length < 0 || close(target) != 0;
}

static int write_as_nodemanager(const char *path, int number) {
  uid_t user = geteuid();
  gid_t group = getegid();
  char *fresh = text("%s.tmp", path);
  if (become(nm_uid, nm_gid)) return 1;
  int failed = 0, opened = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
  if (opened < 0)
    failed = fail(1, "Can't open file %s as node manager - %m", fresh);
  else if (dprintf(opened, "%d", number) < 0 || close(opened) != 0 || rename(fresh, path) != 0)
    failed = fail(1, "Can't move pid file from %s to %s as node manager - %m", fresh, path);
  return become(user, group) || failed;
}

/* Add this process to a control group. */
static int enter_cgroup(const char *path) {
  uid_t user = geteuid();
  gid_t group = getegid();
  struct statfs kind;
  if (seteuid(0) != 0) return 1;
  int failed = 0, opened = -1;
  if (statfs(path, &kind) != 0 || kind.f_type != CGROUP_SUPER_MAGIC)
    failed = fail(1, "Pid file %s is not located on cgroup filesystem", path);
  else if ((opened = open(path, O_WRONLY | O_APPEND | O_CLOEXEC)) < 0 || dprintf(opened, "%d", getpid()) < 0)
    failed = fail(1, "Failed to write pid to file %s - %m", path);
  if (opened >= 0) close(opened);
  return setegid(group) != 0 || seteuid(user) != 0 || failed;
}

static int make_user_directories(const char *user, char **locals) {
  for (; *locals != NULL; locals++)
    if (!is_of_nodemanager(*locals) || make_user_directory(text("%s/usercache/%s", *locals, user)))
      return INITIALIZE_USER_FAILED;
  return 0;
}

static int make_log_directories(const char *application, char **logs) {
  int made = 0;
  for (; *logs != NULL; logs++)
    if (is_of_nodemanager(*logs)) {
      if (make_user_directory(text("%s/%s", *logs, application))) return FAILED;
      made = 1;
    }
  return made ? 0 : fail(FAILED, "Did not create any app-log directories");
}

static char *make_application_directories(const char *user, const char *application, char **locals) {
  char *first = NULL;
  for (; *locals != NULL; locals++) {
    char *path = text("%s/usercache/%s/appcache/%s", *locals, user, application);
    if (make_directories(path, 0750) == 0 && first == NULL) first = path;
  }
  if (first == NULL) printf("Did not create any app directories\n");
  return first;
}

/* user application container tokens local-dirs log-dirs command... */
static int initialize(const char *user, char **given) {
  char **locals = split(given[3]), **logs = split(given[4]), *directory;
  int code, tokens;
  if ((code = make_user_directories(user, locals)) != 0 || (code = make_log_directories(given[0], logs)) != 0) return code;
  for (char **log = logs; *log != NULL; log++)
    if (make_user_directory(text("%s/%s/%s", *log, given[0], given[1]))) return FAILED;
  if ((tokens = open_as_nodemanager(given[2])) < 0 || become_for_ever(run_uid, run_gid)) return FAILED;
  if ((directory = make_application_directories(user, given[0], locals)) == NULL) return FAILED;
  if (copy_to(tokens, text("%s/%s", directory, basename(strdup(given[2]))), 0600)) return FAILED;
  fclose(stdin);
  fflush(stdout);
  if (chdir(directory) != 0) return fail(FAILED, "Failed to chdir to app dir - %m");
  execvp(given[5], given + 5);
  fprintf(stderr, "Failure to exec app initialization process - %m\n");
  return FAILED;
}

/* The directories of a container, as the user: work 710, log 750, and those for temporary files. */
static int make_container_directories(const char *user, char **given, char **locals, char **logs) {
  const char *const below[] = {"tmp", "private_slash_tmp", "private_var_slash_tmp"};
  int made = 0;
  for (; *locals != NULL; locals++)
    made |= is_of_nodemanager(*locals) &&
            make_directories(text("%s/usercache/%s/appcache/%s/%s", *locals, user, given[0], given[1]), 0710) == 0;
  if (!made) return COULD_NOT_CREATE_WORK_DIRECTORIES;
  for (made = 0; *logs != NULL; logs++) {
    if (!is_of_nodemanager(*logs)) return COULD_NOT_CREATE_APP_LOG_DIRECTORIES;
    made |= make_directories(text("%s/%s/%s", *logs, given[0], given[1]), 0750) == 0;
  }
  if (!made) return COULD_NOT_CREATE_APP_LOG_DIRECTORIES;
  for (size_t i = 0; i < sizeof below / sizeof *below; i++)
    if (make_directories(text("%s/%s", given[2], below[i]), 0710)) return COULD_NOT_CREATE_TMP_DIRECTORIES;
  return 0;
}

/* application container work-dir script tokens --http|--https keystore truststore pid-file local-dirs log-dirs resources */
static int launch(const char *user, char **given, int count) {
  int https = count > 5 && strcmp(given[5], "--https") == 0, status, code, script, tokens;
  if (count != (https ? 12 : 10)) {
    fprintf(stderr, "Wrong number of arguments (%d vs 14 - 17) for launch container\n", count + 4);
    return INVALID_ARGUMENT_NUMBER;
  }
  char **rest = given + (https ? 8 : 6), *pid_file = rest[0], *resources = strchr(rest[3], '=');
  char **locals = split(rest[1]), **logs = split(rest[2]);
  if (resources == NULL) return fprintf(stderr, "Invalid arguments for cgroups resources: %s", rest[3]), INVALID_ARGUMENT_NUMBER;
  printf("Getting exit code file...\nCreating script paths...\n");
  if ((script = open_as_nodemanager(given[3])) < 0 || (tokens = open_as_nodemanager(given[4])) < 0)
    return fprintf(stderr, "Could not create local files and directories\n"), INVALID_NM_ROOT_DIRS;
  pid_t child = fork();
  if (child != 0) {
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return write_as_nodemanager(text("%s.exitcode", pid_file), code) ? FAILED : code;
  }
  /* What was not flushed is lost in a child that fails here, as with the original. */
  if (setsid() < 0) _exit(SETSID_OPER_FAILED);
  printf("Writing pid file...\nWriting to tmp file %s.tmp\n", pid_file);
  if (write_as_nodemanager(pid_file, getpid())) _exit(WRITE_PIDFILE_FAILED);
  printf("Writing to cgroup task files...\n");
  if (strncmp(rest[3], "cgroups=", 8) == 0)
    for (char **one = split(resources + 1); *one != NULL; one++)
      if (strcmp(*one, "none") != 0 && enter_cgroup(*one)) _exit(WRITE_CGROUP_FAILED);
  printf("Creating local dirs...\n");
  if ((code = make_user_directories(user, locals)) != 0 || (code = make_log_directories(given[0], logs)) != 0)
    fprintf(stderr, "Could not create user dir\n");
  else if (become_for_ever(run_uid, run_gid))
    code = SETUID_OPER_FAILED;
  else if (make_application_directories(user, given[0], locals) == NULL)
    code = COULD_NOT_CREATE_WORK_DIRECTORIES;
  else if ((code = make_container_directories(user, given, locals, logs)) != 0)
    fprintf(stderr, "Could not create container dirs\n");
  else if (copy_to(script, text("%s/launch_container.sh", given[2]), 0700))
    code = COULD_NOT_CREATE_SCRIPT_COPY;
  else if (copy_to(tokens, text("%s/container_tokens", given[2]), 0600))
    code = COULD_NOT_CREATE_CREDENTIALS_FILE;
  else if (chdir(given[2]) != 0)
    code = FAILED;
  if (code != 0) {
    fprintf(stderr, "Could not create local files and directories\n");
    _exit(code);
  }
  printf("Launching container...\n");
  fcloseall();
  umask(0027);
  char *program = text("%s/launch_container.sh", given[2]);
  execlp(program, program, NULL);
  _exit(UNABLE_TO_EXECUTE_CONTAINER_SCRIPT);
}

static int signal_container(const char *pid_text, const char *signal_text) {
  int pid = atoi(pid_text), number = atoi(signal_text);
  if (pid <= 0) return INVALID_CONTAINER_PID;
  if (become_for_ever(run_uid, run_gid)) return SETUID_OPER_FAILED;
  if (kill(-pid, 0) < 0)
    return fail(INVALID_CONTAINER_PID, "Error signalling not exist process group %d with signal %d", pid, number);
  if (kill(-pid, number) < 0) return errno == ESRCH ? INVALID_CONTAINER_PID : UNABLE_TO_SIGNAL_CONTAINER;
  return fail(0, "Killing process group %d with %d", pid, number);
}

static int remove_one(const char *path, const struct stat *found, int kind, struct FTW *place) {
  (void)found;
  /* The directory itself is the caller's: only the NodeManager may remove it if it lies in one of its own. */
  return place->level == 0 && kind == FTW_DP ? 0 : remove(path);
}

static int open_directory(const char *path, const struct stat *found, int kind, struct FTW *place) {
  (void)place;
  if ((kind == FTW_D || kind == FTW_DNR) && (found->st_mode & 0700) != 0700 && chmod(path, 0700) != 0 && errno != ENOENT) return -1;
  return 0;
}

static int delete_path(const char *path, int is_in_nodemanagers) {
  struct stat found;
  if (lstat(path, &found) != 0) return errno == ENOENT ? 0 : fail(FAILED, "is_dir_helper(%s) failed: %m", path);
  if (!S_ISDIR(found.st_mode)) return remove(path) == 0 || errno == ENOENT ? 0 : fail(FAILED, "failed to unlink %s: %m", path);
  nftw(path, open_directory, 64, FTW_PHYS);
  if (nftw(path, remove_one, 64, FTW_PHYS | FTW_DEPTH) != 0) return fail(FAILED, "Error while deleting %s: %d (%m)", path, errno);
  if (rmdir(path) == 0 || errno == ENOENT) return 0;
  if (is_in_nodemanagers && (errno == EACCES || errno == EPERM) && become(nm_uid, nm_gid) == 0 && rmdir(path) == 0) return 0;
  return fail(FAILED, "Couldn't delete directory %s - %m", path);
}

static int delete(char **given) {
  int code = 0, failed;
  if (given[1] == NULL) return delete_path(given[0], given[0][0] == 0);
  for (char **base = given + 1; *base != NULL; base++)
    if ((failed = delete_path(given[0][0] ? text("%s/%s", *base, given[0]) : *base, given[0][0] == 0)) != 0) code = failed;
  return code;
}

static int list(const char *path) {
  DIR *directory = opendir(path);
  struct dirent *one;
  if (directory == NULL) return errno == ENOTDIR ? fail(0, "%s", path) : fail(FAILED, "Could not open directory %s - %m", path);
  while ((one = readdir(directory)) != NULL)
    if (strcmp(one->d_name, ".") != 0 && strcmp(one->d_name, "..") != 0) printf("%s\n", one->d_name);
  closedir(directory);
  return 0;
}

static int run_as_user(int count, char **given) {
  static const int needed[] = {[0] = 10, [1] = 4, [2] = 6, [3] = 5, [5] = 5};
  int command, code;
  if (count < 4) return fail(INVALID_ARGUMENT_NUMBER, "Usage: container-executor --checksetup");
  command = atoi(given[3]);
  printf("main : command provided %d\nmain : run as user is %s\nmain : requested yarn user is %s\n", command, given[1], given[2]);
  fflush(stdout);
  if (command == 4 || command == 6) return fprintf(stderr, "Feature disabled: %s\n", command == 4 ? "docker" : "sysfs"), FEATURE_DISABLED;
  if (command < 0 || command > 5) return fprintf(stderr, "Invalid command %d not supported.", command), INVALID_COMMAND_PROVIDED;
  if (count < needed[command])
    return fprintf(stderr, "Too few arguments (%d vs %d)\n", count, needed[command]), INVALID_ARGUMENT_NUMBER;
  if ((code = set_user(given[1])) != 0) return code;
  switch (command) {
    case 0: return initialize(given[2], given + 4);
    case 1: return launch(given[2], given + 4, count - 4);
    case 2: return signal_container(given[4], given[5]);
    case 3: return delete(given + 4);
    default: return list(given[4]);
  }
}

/* --excluded_gpus 0,2 --container_id container_x */
static int deny_gpus(int count, char **given) {
  const char *excluded = NULL, *container = NULL, *value;
  if ((value = configured("gpu", "module.enabled")) == NULL || strcmp(value, "true") != 0)
    return fprintf(stderr, "Please make sure gpu module is enabled before using it.\n"), FAILED;
  for (int i = 0; i + 1 < count; i += 2) {
    if (strcmp(given[i], "--excluded_gpus") == 0) excluded = given[i + 1];
    if (strcmp(given[i], "--container_id") == 0) container = given[i + 1];
  }
  if (container == NULL) return fprintf(stderr, "[handle_gpu_request] --container_id must be specified.\n"), 1;
  if (strncmp(container, "container_", 10) != 0 || strchr(container, '/') != NULL)
    return fprintf(stderr, "Specified container_id=%s is invalid\n", container), 1;
  if (excluded == NULL) return fprintf(stderr, "is not specified, skip cgroups call.\n"), 0;
  value = configured("gpu", "gpu.major-device-number");
  int major = value ? atoi(value) : 195;
  value = configured("gpu", "gpu.allowed-device-minor-numbers");
  char *allowed = value ? strdup(value) : NULL;
  char *root = strdup((value = configured("cgroups", "root")) ? value : ""), *path;
  value = configured("cgroups", "yarn-hierarchy");
  path = text("%s/devices/%s/%s/devices.deny", root, value ? value : "", container);
  char *rest = strdup(excluded), *minor;
  while ((minor = strsep(&rest, ",")) != NULL) {
    if (allowed != NULL && !is_listed(allowed, minor, ","))
      return fprintf(stderr, "Trying to blacklist device with minor-number=%s which is not on allowed list\n", minor), FAILED;
    int opened = open(path, O_WRONLY | O_APPEND);
    if (opened < 0 || dprintf(opened, "c %d:%s rwm", major, minor) < 0)
      return fprintf(stderr, "CGroups: Could not write %s - %m\n", path), FAILED;
    close(opened);
  }
  return 0;
}

/* hierarchy controller=path ... */
static int mount_cgroups(int count, char **given) {
  const char *enabled = configured("", "feature.mount-cgroup.enabled");
  if (enabled == NULL || (strcmp(enabled, "true") != 0 && strcmp(enabled, "1") != 0))
    return fprintf(stderr, "Feature disabled: mount cgroup\n"), FEATURE_DISABLED;
  if (count < 2) return INVALID_ARGUMENT_NUMBER;
  for (int i = 1; i < count; i++) {
    char *controller = strdup(given[i]), *path = strchr(controller, '=');
    if (path == NULL) return fail(FAILED, "Failed to mount cgroup controller; invalid option: %s", given[i]);
    *path++ = 0;
    if (mount("none", path, "cgroup", 0, controller) == 0) {
      char *hierarchy = text("%s/%s", path, given[0]);
      if (make_directories(hierarchy, 0750) == 0 && chown(hierarchy, nm_uid, nm_gid) != 0) return FAILED;
    } else if (errno != EBUSY) {
      return fail(FAILED, "Failed to mount cgroup controller %s at %s - %m", controller, path);
    }
  }
  return 0;
}

int main(int count, char **given) {
  int code = check_setup();
  signal(SIGPIPE, SIG_IGN);
  if (code == 0 && count < 2) code = INVALID_ARGUMENT_NUMBER;
  if (code != 0) return code;
  if (strcmp(given[1], "--checksetup") == 0) return 0;
  if (strcmp(given[1], "--module-gpu") == 0) return deny_gpus(count - 2, given + 2);
  if (strcmp(given[1], "--mount-cgroups") == 0) return mount_cgroups(count - 2, given + 2);
  if (strncmp(given[1], "--", 2) == 0) return fprintf(stderr, "Feature disabled: %s\n", given[1] + 2), FEATURE_DISABLED;
  return run_as_user(count, given);
}
