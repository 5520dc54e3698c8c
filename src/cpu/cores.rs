//! The cores that this process may use: affinity mask, control-group quota, and which of them are one core's siblings.
//!
//! Knows the operating system's files; knows no worker and no task.

use std::{fs, io, path::Path};

/// CPUs in the order in which workers should take them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Allowed CPUs: one of every physical core first (ascending), then the second siblings, and so on.
    order: Vec<usize>,
    /// How many CPUs at the front of `order` are physical cores of their own.
    physical: usize,
    /// CPUs' worth of time that the control group allows, rounded down, at least one.
    quota: Option<usize>,
}

impl Cores {
    /// Asks the operating system. What it does not tell counts as "no limit".
    ///
    /// **Source**: `sched_getaffinity`, `/proc/self/cgroup`, `cpu.max` (v2), `cpu.cfs_quota_us` (v1), sysfs CPU topology.
    pub fn allowed() -> Self {
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::from_parts(
            &affinity(),
            Path::new("/sys/devices/system/cpu"),
            quota(&cgroups, Path::new("/sys/fs/cgroup")),
        )
    }

    /// **Units**: bytes. The largest cache that a core reads through, if the operating system tells.
    pub fn largest_cache() -> Option<usize> {
        let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
        let sizes = caches.filter_map(|cache| {
            let text = fs::read_to_string(cache.ok()?.path().join("size")).ok()?;
            let kib: usize = text.trim().strip_suffix('K')?.parse().ok()?;
            Some(kib << 10)
        });
        sizes.max()
    }

    /// The CPU of each worker: as many as `asked`, else one per physical core within the quota. More workers than CPUs share
    /// CPUs, in order.
    pub fn workers(&self, asked: Option<usize>) -> Vec<usize> {
        let by_default = self.physical.min(self.quota.unwrap_or(usize::MAX));
        let count = asked.unwrap_or(by_default).max(1);
        self.order.iter().copied().cycle().take(count).collect()
    }

    fn from_parts(mask: &[usize], topology: &Path, quota: Option<usize>) -> Self {
        let mut mask = mask.to_vec();
        mask.sort_unstable();
        let mut ranked: Vec<(usize, usize)> = Vec::with_capacity(mask.len());
        let mut seen: Vec<(usize, usize)> = Vec::new(); // (core, CPUs of it so far)
        for cpu in mask {
            let core = first_sibling(topology, cpu).unwrap_or(cpu);
            let rank = match seen.iter_mut().find(|(known, _)| *known == core) {
                Some((_, count)) => {
                    *count += 1;
                    *count
                }
                None => {
                    seen.push((core, 0));
                    0
                }
            };
            ranked.push((rank, cpu));
        }
        ranked.sort_unstable();
        Self {
            order: ranked.iter().map(|(_, cpu)| *cpu).collect(),
            physical: seen.len(),
            quota,
        }
    }
}

/// Binds the calling thread to one CPU.
///
/// **Errors**: the CPU does not exist or is not allowed; outside Linux always.
pub fn pin(cpu: usize) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let mut mask = [0u64; MASK_WORDS];
        let Some(word) = mask.get_mut(cpu / 64) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        *word |= 1 << (cpu % 64);
        // SAFETY: the mask outlives the call and its size is given in bytes; thread 0 is the calling thread.
        let code = unsafe { libc::sched_setaffinity(0, size_of_val(&mask), mask.as_ptr().cast()) };
        if code == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = cpu;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Words of an affinity mask: 8192 CPUs, the most that Linux can be built for.
#[cfg(target_os = "linux")]
const MASK_WORDS: usize = 128;

#[cfg(target_os = "linux")]
fn affinity() -> Vec<usize> {
    let mut mask = [0u64; MASK_WORDS];
    // SAFETY: the kernel writes at most the given number of bytes into the mask.
    let code = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    if code != 0 {
        return every_cpu();
    }
    (0..MASK_WORDS * 64)
        .filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1)
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn affinity() -> Vec<usize> {
    every_cpu()
}

fn every_cpu() -> Vec<usize> {
    (0..std::thread::available_parallelism().map_or(1, |count| count.get())).collect()
}

/// The lowest CPU of the core that `cpu` belongs to.
fn first_sibling(topology: &Path, cpu: usize) -> Option<usize> {
    let folder = topology.join(format!("cpu{cpu}/topology"));
    let list = ["core_cpus_list", "thread_siblings_list"]
        .iter()
        .find_map(|name| fs::read_to_string(folder.join(name)).ok())?;
    list.trim().split([',', '-']).next()?.parse().ok()
}

/// The tightest CPU limit on the way from the process's control group to the root.
fn quota(cgroups: &str, root: &Path) -> Option<usize> {
    cgroups
        .lines()
        .filter_map(|line| limit_of(line, root))
        .min()
}

/// The limit behind one line `hierarchy:controllers:path` of `/proc/self/cgroup`.
fn limit_of(line: &str, root: &Path) -> Option<usize> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let unified = controllers.is_empty();
    if !unified && !controllers.split(',').any(|name| name == "cpu") {
        return None;
    }
    // version 1 mounts each set of controllers in a folder of its own, usually with a link named `cpu`
    let mount = if unified {
        root.to_path_buf()
    } else {
        root.join("cpu")
    };
    let group = group.trim_start_matches('/');
    // inside a container the group's path may not exist below the mount; its ancestors, at last the mount itself, do
    Path::new(group)
        .ancestors()
        .filter_map(|part| read_limit(&mount.join(part), unified))
        .min()
}

fn read_limit(folder: &Path, unified: bool) -> Option<usize> {
    let (quota, period) = if unified {
        let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        (quota.to_owned(), period.to_owned())
    } else {
        let read = |name| {
            fs::read_to_string(folder.join(name))
                .map(|text: String| text.trim().to_owned())
                .ok()
        };
        (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
    };
    // "max" and -1 mean no limit; neither parses
    let (quota, period): (usize, usize) = (quota.parse().ok()?, period.parse().ok()?);
    Some((quota / period.max(1)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn quota_is_the_tightest_on_the_way_up() {
        let check = |files: &[(&str, &str)], cgroups: &str, want: Option<usize>| {
            let root = tempfile::tempdir().unwrap();
            write(root.path(), files);
            assert_eq!(quota(cgroups, root.path()), want, "{cgroups:?} {files:?}");
        };
        check(&[], "0::/a/b\n", None);
        check(&[("a/b/cpu.max", "max 100000\n")], "0::/a/b\n", None);
        check(
            &[
                ("a/b/cpu.max", "400000 100000\n"),
                ("a/cpu.max", "250000 100000\n"),
            ],
            "0::/a/b\n",
            Some(2),
        );
        check(&[("cpu.max", "50000 100000\n")], "0::/\n", Some(1));
        check(
            &[("cpu.max", "300000 100000\n")],
            "0::/not/mounted/here\n",
            Some(3),
        );
        let v1 = [
            ("cpu/x/cpu.cfs_quota_us", "300000\n"),
            ("cpu/x/cpu.cfs_period_us", "100000\n"),
        ];
        check(&v1, "4:cpu,cpuacct:/x\n3:memory:/y\n", Some(3));
        check(
            &[
                ("cpu/cpu.cfs_quota_us", "-1\n"),
                ("cpu/cpu.cfs_period_us", "100000\n"),
            ],
            "4:cpu:/\n",
            None,
        );
        check(&v1, "4:cpuset:/x\nnonsense\n", None);
        check(&[("cpu.max", "1 0\n")], "0::/\n", Some(1));
    }

    #[test]
    fn physical_cores_come_before_siblings() {
        let root = tempfile::tempdir().unwrap();
        for cpu in 0..8 {
            let text = format!("{},{}\n", cpu % 4, cpu % 4 + 4);
            write(
                root.path(),
                &[(&format!("cpu{cpu}/topology/core_cpus_list"), &text)],
            );
        }
        let check = |mask: &[usize], quota, asked, want: &[usize]| {
            assert_eq!(
                Cores::from_parts(mask, root.path(), quota).workers(asked),
                want,
                "{mask:?} {quota:?} {asked:?}"
            );
        };
        check(&[0, 1, 2, 3, 4, 5, 6, 7], None, None, &[0, 1, 2, 3]);
        check(&[0, 1, 2, 3, 4, 5, 6, 7], Some(3), None, &[0, 1, 2]);
        check(
            &[0, 1, 2, 3, 4, 5, 6, 7],
            Some(3),
            Some(6),
            &[0, 1, 2, 3, 4, 5],
        );
        check(&[5, 1, 6], None, None, &[1, 6]);
        check(&[5, 1, 6], None, Some(4), &[1, 6, 5, 1]);
        check(&[9, 8], None, None, &[8, 9]); // no topology known
        check(&[3], None, Some(0), &[3]);
    }

    #[test]
    fn this_machine_has_a_core_to_pin_to() {
        let workers = Cores::allowed().workers(None);
        assert!(!workers.is_empty());
        let pinned = std::thread::spawn(move || {
            pin(workers[0])
                .map(|()| affinity())
                .map(|now| now == [workers[0]])
        });
        if cfg!(target_os = "linux") {
            assert!(pinned.join().unwrap().unwrap());
        }
    }
}
