// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/file_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#define ZLIB_CONST  // NOLINT(readability-identifier-naming): a switch of zlib.h
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/file_fingerprint.h"
#include "cohort/core/system_error.h"

namespace cohort {

Compression parse_compression(std::string_view name) {
  for (const Compression known : {Compression::none, Compression::zlib, Compression::gzip}) {
    if (name == name_of(known)) return known;
  }
  internal::throw_error(ErrorCode::invalid_argument,
                        "[data.compression] expected \"\", \"ZLIB\" or \"GZIP\", got \"", name,
                        "\"; unpack the file with its own tool first");
}

std::string_view name_of(Compression compression) {
  switch (compression) {
    case Compression::none:
      return "";
    case Compression::zlib:
      return "ZLIB";
    case Compression::gzip:
      return "GZIP";
  }
  return "unknown";
}

}  // namespace cohort

namespace cohort::data {
namespace {

[[noreturn]] void fail_to_read(const std::string& path, std::string_view op, int code) {
  const ErrorCode kind = code_of_file_errno(code);
  const bool is_limit = kind == ErrorCode::resource_exhausted;  // text_of_errno() names the remedy
  internal::throw_error(
      kind, "[data.", op, "] expected to read file '", path, "', got: ", text_of_errno(code),
      is_limit ? "" : "; correct the path, or make the file readable on this host");
}

class PlainStream final : public FileStream {
 public:
  explicit PlainStream(RegularFile file) : file_(std::move(file)) {}

  std::size_t read(std::span<char> buffer) override {
    const std::size_t got = file_.read_at(offset_, buffer);
    offset_ += got;
    return got;
  }
  void seek(std::uint64_t offset) override { offset_ = offset; }
  std::optional<std::uint64_t> size() const override { return file_.size(); }
  void check_unchanged() const override { file_.check_unchanged(); }

 private:
  RegularFile file_;
  std::uint64_t offset_ = 0;
};

constexpr const char* kShortened = ": the file was shortened while it was read";
constexpr const char* kExtended = ": the file was extended while it was read";
constexpr std::size_t kPackedBytes = 256 << 10;

class InflateStream final : public FileStream {
 public:
  InflateStream(RegularFile file, Compression compression)
      : file_(std::move(file)), compression_(compression) {
    packed_.resize(std::min<std::size_t>(kPackedBytes, std::max<std::uint64_t>(1, file_.size())));
    // Adding 16 selects gzip's header and trailer instead of zlib's.
    const int window_bits = MAX_WBITS + (compression == Compression::gzip ? 16 : 0);
    COHORT_CHECK(::inflateInit2(&zlib_, window_bits) == Z_OK, ErrorCode::resource_exhausted,
                 "[data.", file_.op(), "] expected memory for unpacking '", file_.path(),
                 "', got none");
  }
  ~InflateStream() override { ::inflateEnd(&zlib_); }

  std::size_t read(std::span<char> buffer) override {
    const std::size_t wanted =
        std::min<std::size_t>(buffer.size(), std::numeric_limits<uInt>::max());
    zlib_.next_out = reinterpret_cast<Bytef*>(buffer.data());
    zlib_.avail_out = static_cast<uInt>(wanted);
    while (zlib_.avail_out == wanted && has_more_input()) inflate_some();
    const std::size_t got = wanted - zlib_.avail_out;
    offset_ += got;
    return got;
  }

  void seek(std::uint64_t offset) override {
    if (offset < offset_) rewind();
    std::vector<char> passed(std::min<std::uint64_t>(offset - offset_, kPackedBytes));
    while (offset_ < offset) {
      const std::size_t step = std::min<std::uint64_t>(offset - offset_, passed.size());
      if (read(std::span(passed).first(step)) == 0) return;
    }
  }

  std::optional<std::uint64_t> size() const override { return std::nullopt; }
  void check_unchanged() const override { file_.check_unchanged(); }

 private:
  void rewind() {
    ::inflateReset(&zlib_);
    zlib_.avail_in = 0;
    packed_offset_ = offset_ = 0;
    is_between_streams_ = true;
  }

  // False at the clean end of the file.
  bool has_more_input() {
    if (zlib_.avail_in == 0) {
      const std::size_t got = file_.read_at(packed_offset_, packed_);
      packed_offset_ += got;
      zlib_.next_in = reinterpret_cast<const Bytef*>(packed_.data());
      zlib_.avail_in = static_cast<uInt>(got);
    }
    if (zlib_.avail_in > 0) return true;
    if (!is_between_streams_) fail("the compressed stream is cut off");
    return false;
  }

  void inflate_some() {
    // A concatenation of gzip files is a valid gzip file.
    if (is_between_streams_ && packed_offset_ > zlib_.avail_in) {
      if (compression_ == Compression::zlib) fail("bytes follow the end of the stream");
      ::inflateReset(&zlib_);
    }
    is_between_streams_ = false;
    const uInt room = zlib_.avail_out;
    const int result = ::inflate(&zlib_, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      is_between_streams_ = true;
    } else if (result != Z_OK && result != Z_BUF_ERROR && zlib_.avail_out == room) {
      // If inflate() produced output first, the next call returns the error again.
      fail(zlib_.msg != nullptr ? zlib_.msg : "it cannot be unpacked");
    }
  }

  [[noreturn]] void fail(std::string_view problem) const {
    internal::throw_error(ErrorCode::data_loss, "[data.", file_.op(), "] expected ",
                          name_of(compression_), " data in '", file_.path(),
                          "', got bad bytes before byte ", packed_offset_ - zlib_.avail_in,
                          " of the file: ", problem, "; is its compression ", name_of(compression_),
                          "?");
  }

  RegularFile file_;
  Compression compression_;
  z_stream zlib_{};
  std::vector<char> packed_;
  std::uint64_t packed_offset_ = 0;  // the file offset after the bytes in packed_
  std::uint64_t offset_ = 0;
  bool is_between_streams_ = true;
};

}  // namespace

RegularFile RegularFile::open(const std::string& path, std::string_view op) {
  // O_NONBLOCK, so that opening a pipe does not wait for a writer.
  FileDescriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened.is_open()) fail_to_read(path, op, errno);
  RegularFile file(std::move(opened), path, op);
  struct stat status {};
  if (::fstat(file.file_.get(), &status) != 0) fail_to_read(path, op, errno);
  COHORT_CHECK(S_ISREG(status.st_mode), ErrorCode::invalid_argument, "[data.", op,
               "] expected a regular file, got '", path, "', which is not one");
  file.size_ = static_cast<std::uint64_t>(status.st_size);
  file.modified_ns_ = nanoseconds_of(status.st_mtim);
  return file;
}

std::size_t RegularFile::read_now(std::uint64_t offset, std::span<char> buffer) const {
  std::size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t got = ::pread(file_.get(), buffer.data() + done, buffer.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    COHORT_CHECK(got >= 0, ErrorCode::data_loss, "[data.", op_, "] expected to read byte ",
                 offset + done, " of file '", path_, "', got: ", std::strerror(errno));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

std::size_t RegularFile::read_at(std::uint64_t offset, std::span<char> buffer) const {
  if (offset > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) return 0;
  if (offset < size_) {
    // Reads only up to this size, since the last value of a growing file may be half written.
    buffer = buffer.first(std::min<std::uint64_t>(buffer.size(), size_ - offset));
    const std::size_t done = read_now(offset, buffer);
    // Otherwise the file would seem to end here.
    if (done < buffer.size()) fail_changed(std::to_string(offset + done) + kShortened);
    return done;
  }
  // Some file systems have files without a size, such as those of /proc.
  if (char byte = 0; read_now(offset, {&byte, 1}) > 0)
    fail_changed(std::string("more") + kExtended);
  check_unchanged();
  return 0;
}

void RegularFile::check_unchanged() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail_to_read(path_, op_, errno);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size != size_) fail_changed(std::to_string(size) + (size < size_ ? kShortened : kExtended));
  if (nanoseconds_of(status.st_mtim) != modified_ns_)
    fail_changed("a later change of it: the file was written to while it was read");
}

void RegularFile::fail_changed(const std::string& got) const {
  internal::throw_error(ErrorCode::data_loss, "[data.", op_, "] expected ", size_,
                        " bytes in file '", path_, "', as when it was opened, got ", got,
                        "; to replace or extend a file that is in use, write another one and "
                        "rename it");
}

std::unique_ptr<FileStream> open_stream(const std::string& path, Compression compression,
                                        std::string_view op) {
  RegularFile file = RegularFile::open(path, op);
  if (compression == Compression::none) return std::make_unique<PlainStream>(std::move(file));
  return std::make_unique<InflateStream>(std::move(file), compression);
}

Compression compression_in(std::string_view first_bytes) {
  if (first_bytes.starts_with("\x1f\x8b\x08")) return Compression::gzip;
  // zlib's header is two bytes, which may also begin a text, so some bytes are unpacked.
  constexpr std::size_t kTriedBytes = 512;
  if (first_bytes.size() < 2 || !first_bytes.starts_with('x')) return Compression::none;
  z_stream zlib{};
  if (::inflateInit(&zlib) != Z_OK) return Compression::none;
  char unpacked[kTriedBytes];
  zlib.next_in = reinterpret_cast<const Bytef*>(first_bytes.data());
  zlib.avail_in = static_cast<uInt>(std::min(first_bytes.size(), kTriedBytes));
  zlib.next_out = reinterpret_cast<Bytef*>(unpacked);
  zlib.avail_out = sizeof(unpacked);
  const int result = ::inflate(&zlib, Z_NO_FLUSH);
  const bool has_output = zlib.avail_out < sizeof(unpacked) || result == Z_STREAM_END;
  ::inflateEnd(&zlib);
  return (result == Z_OK || result == Z_STREAM_END) && has_output ? Compression::zlib
                                                                  : Compression::none;
}

std::string compression_remedy(std::string_view first_bytes) {
  switch (compression_in(first_bytes)) {
    case Compression::gzip:
      return "; the file is compressed with gzip: set .compression = Compression::gzip";
    case Compression::zlib:
      return "; the file is compressed with zlib: set .compression = Compression::zlib";
    case Compression::none:
      break;
  }
  return "";
}

}  // namespace cohort::data
