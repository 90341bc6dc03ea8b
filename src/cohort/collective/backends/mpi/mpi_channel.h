// SPDX-License-Identifier: Apache-2.0
// Frames as messages of MPI.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "cohort/collective/backends/mpi/message.h"
#include "cohort/collective/backends/mpi/world.h"
#include "cohort/collective/backends/tcp/channel.h"

namespace cohort::collective::mpi {

// A frame is one message, and the farewell another one. Thread-compatible.
class MpiChannel final : public tcp::Channel {
 public:
  // `tags`: of what this process sends.
  MpiChannel(World& world, SplitPath path, int peer, int tags);

  bool send(tcp::Transfer& transfer) override;
  bool receive(tcp::Transfer& transfer) override;
  void look_for_farewell(int size) override;
  void close_with(const tcp::Farewell& farewell) noexcept override;
  bool is_sending() const override;
  bool has_ended() const override { return has_ended_; }
  // A process that has ended says nothing.
  bool has_farewell_ended() const override { return has_ended_; }

 private:
  void write(Message& message);
  bool has_met_peer();
  bool begin_frame(const Message& message, const std::byte* data);

  World& world_;
  const SplitPath path_;
  const int peer_;
  const int tags_;
  std::optional<int> peer_tags_ = {};
  std::vector<Message> out_ = {};
  std::vector<Message> in_ = {};  // in the order in which their messages come
  std::size_t next_in_ = 0;
  std::vector<Message> farewell_in_ = {};
  tcp::Frame frame_ = {};
  tcp::FrameHeader header_ = {};
  bool has_header_ = false;
  std::uint64_t num_frames_out_ = 0;
  std::uint64_t num_frames_in_ = 0;
  bool has_ended_ = false;
};

}  // namespace cohort::collective::mpi
