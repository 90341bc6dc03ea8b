// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/shared_memory/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/core/system_error.h"

namespace cohort::collective::shared_memory {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

void check_memory(bool is_good, std::string_view what, std::uint64_t bytes) {
  if (is_good) return;
  const int number = errno;
  internal::throw_error(code_of_errno(number, ErrorCode::failed_precondition),
                        "[collective.shared_memory] expected to ", what, " ", bytes,
                        " bytes that processes share, got ", text_of_errno(number),
                        "; free memory, or choose GroupBackend::tcp");
}

}  // namespace

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

SharedFile SharedFile::create(std::uint64_t bytes) {
  SharedFile made(
      FileDescriptor(::memfd_create("cohort-collective", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  check_memory(made.file_.is_open(), "create", bytes);
  check_memory(::ftruncate(made.descriptor(), static_cast<off_t>(bytes)) == 0, "have", bytes);
  // A file that another process shortens ends those that read the rest.
  check_memory(::fcntl(made.descriptor(), F_ADD_SEALS, kSizeSeals) == 0, "fix the size of", bytes);
  return made;
}

SharedFile SharedFile::open(std::int64_t process, int descriptor, std::uint64_t bytes) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  // Not blocking, in case that it is something else.
  SharedFile opened(FileDescriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK)));
  const auto refuse = [&](std::string_view got) {
    internal::throw_error(ErrorCode::failed_precondition, "[collective.shared_memory] expected ",
                          path, " to be the memory of this group, got ", got,
                          "; run all workers of a host as one user who sees the others' "
                          "processes, or choose GroupBackend::tcp");
  };
  if (!opened.file_.is_open()) refuse(text_of_errno(errno));
  struct stat status = {};
  if (::fstat(opened.descriptor(), &status) != 0 || status.st_size != static_cast<off_t>(bytes) ||
      (::fcntl(opened.descriptor(), F_GET_SEALS) & kSizeSeals) != kSizeSeals)
    refuse("another file");
  return opened;
}

void SharedFile::reserve(std::uint64_t offset, std::uint64_t bytes) const {
  int rc = 0;
  do {
    rc = ::fallocate(descriptor(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (rc != 0 && errno == EINTR);
  check_memory(rc == 0, "reserve", bytes);
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
  check_memory(data != MAP_FAILED, "map", bytes);
  return {data, bytes};
}

}  // namespace cohort::collective::shared_memory
