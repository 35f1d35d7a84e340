/* A disk that forgets what was not synced. Preloaded into a writer, it keeps a copy of every file and of every list of names
 * below POWERCUT_ROOT at the moment it is synced, in POWERCUT_STORE. What is not there when the writer is killed may be lost:
 * `index_powercut.py` builds the folder that a power cut could have left.
 *
 *     gcc -shared -fPIC -O2 -o powercut.so powercut.c -ldl
 *
 * Files are known by inode and time of birth, since inodes are used again. Nothing is really synced: that only takes time.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *root, *store;

__attribute__((constructor)) static void begin(void) {
    root = getenv("POWERCUT_ROOT");
    store = getenv("POWERCUT_STORE");
}

static int key_of(int directory, const char *name, int flags, char *key, size_t size) {
    struct statx about;
    if (statx(directory, name, flags | AT_STATX_SYNC_AS_STAT, STATX_INO | STATX_BTIME | STATX_TYPE, &about)) return -1;
    snprintf(key, size, "%llu-%lld-%u", (unsigned long long)about.stx_ino, (long long)about.stx_btime.tv_sec, about.stx_btime.tv_nsec);
    return (about.stx_mode & S_IFMT) == S_IFDIR;
}

static void keep_file(const char *link, const char *temporary) {
    char block[65536];
    int handle = open(link, O_RDONLY); /* the writer's own may be for writing only */
    int out = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    off_t at = 0;
    ssize_t got;
    while ((got = pread(handle, block, sizeof block, at)) > 0) {
        if (write(out, block, got) != got) abort();
        at += got;
    }
    close(handle);
    close(out);
}

static void keep_names(const char *path, const char *temporary) {
    DIR *directory = opendir(path);
    FILE *out = fopen(temporary, "w");
    struct dirent *entry;
    char key[96];
    while (directory && (entry = readdir(directory))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        int kind = key_of(dirfd(directory), entry->d_name, AT_SYMLINK_NOFOLLOW, key, sizeof key);
        if (kind >= 0) fprintf(out, "%c %s %s\n", kind ? 'd' : 'f', key, entry->d_name);
    }
    if (directory) closedir(directory);
    fclose(out);
}

static int keep(int handle) {
    char link[64], path[PATH_MAX + 1], key[96], temporary[PATH_MAX], target[PATH_MAX];
    if (!root || !store) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, root, strlen(root))) return 0;
    int kind = key_of(handle, "", AT_EMPTY_PATH, key, sizeof key);
    if (kind < 0) return 0;
    snprintf(temporary, sizeof temporary, "%s/.%ld", store, syscall(SYS_gettid));
    snprintf(target, sizeof target, "%s/%c-%s", store, kind ? 'd' : 'f', key);
    if (kind) keep_names(path, temporary);
    else keep_file(link, temporary);
    rename(temporary, target);
    return 0;
}

int fsync(int handle) { return keep(handle); }
int fdatasync(int handle) { return keep(handle); }
