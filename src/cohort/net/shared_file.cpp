// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "cohort/core/error.h"
#include "cohort/core/system_error.h"

namespace cohort::net {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

void SharedFile::check(bool is_good, std::string_view act, std::uint64_t bytes) const {
  if (is_good) return;
  const int number = errno;
  internal::throw_error(code_of_errno(number, ErrorCode::failed_precondition),
                        "[net.shared_file] expected to ", act, " ", bytes,
                        " bytes that processes share, got ", text_of_errno(number),
                        "; free memory, or ", otherwise_);
}

SharedFile SharedFile::create(std::uint64_t bytes, const char* otherwise) {
  SharedFile file(::memfd_create("cohort-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING), otherwise);
  file.check(file.file_.is_open(), "create", bytes);
  file.check(::ftruncate(file.descriptor(), static_cast<off_t>(bytes)) == 0, "have", bytes);
  // A file that another process shortens ends those that read the rest.
  file.check(::fcntl(file.descriptor(), F_ADD_SEALS, kSizeSeals) == 0, "fix the size of", bytes);
  return file;
}

SharedFile SharedFile::open(std::int64_t process, int descriptor, std::uint64_t bytes,
                            const char* otherwise) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  // Not blocking, in case that it is something else.
  SharedFile file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK), otherwise);
  const auto refuse = [&](std::string_view got) {
    internal::throw_error(ErrorCode::failed_precondition, "[net.shared_file] expected ", path,
                          " to be memory that processes share, got ", got,
                          "; run all tasks of a host as one user who sees the others' "
                          "processes, or ",
                          otherwise);
  };
  if (!file.file_.is_open()) refuse(text_of_errno(errno));
  struct stat status = {};
  if (::fstat(file.descriptor(), &status) != 0 || status.st_size != static_cast<off_t>(bytes) ||
      (::fcntl(file.descriptor(), F_GET_SEALS) & kSizeSeals) != kSizeSeals)
    refuse("another file");
  return file;
}

void SharedFile::reserve(std::uint64_t offset, std::uint64_t bytes) const {
  int rc = 0;
  do {
    rc = ::fallocate(descriptor(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (rc != 0 && errno == EINTR);
  check(rc == 0, "reserve", bytes);
}

void SharedFile::clear(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  while (::fallocate(descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0 &&
         errno == EINTR) {
  }
}

Mapping SharedFile::map(std::uint64_t offset, std::uint64_t bytes) const {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor(),
                            static_cast<off_t>(offset));
  check(data != MAP_FAILED, "map", bytes);
  return {data, bytes};
}

}  // namespace cohort::net
