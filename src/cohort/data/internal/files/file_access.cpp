// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/files/file_access.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cohort/core/error.h"

namespace cohort::data {
namespace {

namespace fs = std::filesystem;

// Links resolved as far as the path exists.
fs::path resolved(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(fs::absolute(path), error);
  return error ? fs::path() : found;
}

bool is_under(const fs::path& path, const fs::path& directory) {
  const auto [end, rest] =
      std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  // "/data/" ends in an empty part.
  return end == directory.end() || (std::next(end) == directory.end() && end->empty());
}

std::string listed(const std::vector<std::string>& directories) {
  std::string text;
  for (const std::string& directory : directories) text += (text.empty() ? "" : ", ") + directory;
  return text.empty() ? "none was given" : text;
}

[[noreturn]] void fail_to_open(const std::string& path, std::string_view op, int code) {
  const ErrorCode kind = code == ENOENT || code == ENOTDIR ? ErrorCode::not_found
                         : code == EACCES                  ? ErrorCode::permission_denied
                                                           : ErrorCode::failed_precondition;
  internal::throw_error(kind, "[data.", op, "] expected to read file '", path,
                        "', got: ", std::strerror(code),
                        "; correct the path, or make the file readable on this host");
}

// A file descriptor that closes itself.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

std::string allowed_path(const std::string& path, const RunOptions& options, std::string_view op) {
  COHORT_CHECK(path.find('\0') == std::string::npos, ErrorCode::invalid_argument, "[data.", op,
               "] expected a path without zero bytes, got '", path.c_str(),
               "' and more behind such a byte; correct the path");
  if (!options.data_dirs) return path;
  const fs::path found = resolved(path);
  const bool is_allowed =
      !found.empty() && std::any_of(options.data_dirs->begin(), options.data_dirs->end(),
                                    [&](const std::string& directory) {
                                      const fs::path root = resolved(directory);
                                      return !root.empty() && is_under(found, root);
                                    });
  COHORT_CHECK(is_allowed, ErrorCode::permission_denied, "[data.", op,
               "] expected a file under this server's data directories (",
               listed(*options.data_dirs), "), got '", path,
               "'; name its directory with --data DIR of cohort launch or cohort server");
  return found.string();
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, std::string_view op) {
  // A named pipe without a writer would keep open() waiting.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) fail_to_open(path, op, errno);
  struct stat status {};
  if (::fstat(file.value, &status) != 0) fail_to_open(path, op, errno);
  COHORT_CHECK(S_ISREG(status.st_mode), ErrorCode::invalid_argument, "[data.", op,
               "] expected a regular file, got '", path, "', which is none");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile({}));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (data == MAP_FAILED) fail_to_open(path, op, errno);
  return std::shared_ptr<const MappedFile>(
      new MappedFile(std::span(static_cast<const std::byte*>(data), size)));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace cohort::data
