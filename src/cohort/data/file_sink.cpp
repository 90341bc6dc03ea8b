// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/file_sink.h"

#include <fcntl.h>
#include <unistd.h>
#define ZLIB_CONST  // NOLINT(readability-identifier-naming): a switch of zlib.h
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/system_error.h"

namespace cohort::data {
namespace {

constexpr std::size_t kBufferBytes = 256 << 10;

class PlainSink final : public FileSink {
 public:
  PlainSink(const std::string& path, std::string_view op)
      : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)),
        path_(path),
        op_(op) {
    if (!file_.is_open()) fail("to create");
    buffer_.reserve(kBufferBytes);
  }

  void write(std::string_view bytes) override {
    check();
    if (buffer_.size() + bytes.size() > kBufferBytes) flush();
    if (bytes.size() >= kBufferBytes) {
      write_now(bytes);
    } else {
      buffer_ += bytes;
    }
  }

  void flush() override {
    check();
    write_now(buffer_);
    buffer_.clear();
  }

  void close() override {
    flush();
    // Some file systems report a full disk only here.
    if (::close(file_.release()) != 0) fail("to close");
  }

 private:
  // After a failed write it is unknown how many bytes are in the file, so nothing more may be
  // written.
  void check() const {
    COHORT_CHECK(!has_failed_, ErrorCode::failed_precondition, "[data.", op_,
                 "] expected a file that was written so far, got '", path_,
                 "', where writing failed before; write the whole file again");
  }

  void write_now(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::write(file_.get(), bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) {
        has_failed_ = true;
        fail("to write");
      }
      bytes.remove_prefix(static_cast<std::size_t>(done));
    }
  }

  [[noreturn]] void fail(std::string_view action) const {
    const int code = errno;
    cohort::internal::throw_error(code_of_file_errno(code), "[data.", op_, "] expected ", action,
                                  " file '", path_, "', got: ", text_of_errno(code));
  }

  FileDescriptor file_;
  std::string path_;
  std::string op_;
  std::string buffer_;
  bool has_failed_ = false;
};

class DeflateSink final : public FileSink {
 public:
  DeflateSink(const std::string& path, Compression compression, std::string_view op)
      : file_(path, op), packed_(kBufferBytes) {
    const int window_bits = MAX_WBITS + (compression == Compression::gzip ? 16 : 0);
    constexpr int kMemoryLevel = 8;  // zlib's default
    COHORT_CHECK(::deflateInit2(&zlib_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, window_bits,
                                kMemoryLevel, Z_DEFAULT_STRATEGY) == Z_OK,
                 ErrorCode::resource_exhausted, "[data.", op, "] expected memory for packing '",
                 path, "', got none");
  }
  ~DeflateSink() override { ::deflateEnd(&zlib_); }

  void write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const std::size_t piece =
          std::min<std::size_t>(bytes.size(), std::numeric_limits<uInt>::max());
      deflate(bytes.substr(0, piece), Z_NO_FLUSH);
      bytes.remove_prefix(piece);
    }
  }
  void flush() override {
    deflate({}, Z_SYNC_FLUSH);
    file_.flush();
  }
  void close() override {
    deflate({}, Z_FINISH);
    file_.close();
  }

 private:
  void deflate(std::string_view bytes, int mode) {
    zlib_.next_in = reinterpret_cast<const Bytef*>(bytes.data());
    zlib_.avail_in = static_cast<uInt>(bytes.size());
    do {
      zlib_.next_out = reinterpret_cast<Bytef*>(packed_.data());
      zlib_.avail_out = static_cast<uInt>(packed_.size());
      // It cannot fail: the stream is valid and the output buffer is not full.
      COHORT_ASSERT(::deflate(&zlib_, mode) != Z_STREAM_ERROR);
      file_.write({packed_.data(), packed_.size() - zlib_.avail_out});
    } while (zlib_.avail_out == 0);
  }

  PlainSink file_;
  z_stream zlib_{};
  std::vector<char> packed_;
};

}  // namespace

std::unique_ptr<FileSink> create_file(const std::string& path, Compression compression,
                                      std::string_view op) {
  if (compression == Compression::none) return std::make_unique<PlainSink>(path, op);
  return std::make_unique<DeflateSink>(path, compression, op);
}

}  // namespace cohort::data
