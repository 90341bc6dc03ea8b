// SPDX-License-Identifier: Apache-2.0
// One pipeline that feeds several devices: element k goes to device k mod R, whichever asks first
// (tf.data's MultiDeviceIterator).
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/device.h"
#include "cohort/core/export.h"
#include "cohort/data/dataset.h"
#include "cohort/data/optional.h"
#include "cohort/input/device_memory.h"

namespace cohort {

// What an element that fails costs.
enum class ErrorTurn : std::uint8_t {
  device,  // the turn of the device that would have got it, which alone sees the error (as in tf)
  round,   // the turns of all devices in its round, once: the elements of a round belong together
  none,    // no turn: the source has left out with it what else the devices would have got
};

struct MultiDeviceOptions {
  // Elements copied ahead for each device whose memory is not the host's; 0: when asked for.
  std::int64_t buffer_size = 1;
  bool fetch_to_device = true;
  ErrorTurn error_turn = ErrorTurn::device;
  std::shared_ptr<const DeviceMemory> memory = libtorch_memory();
};

// Deals on the caller's thread: no thread to wake. Elements of a device that does not ask wait for
// it, and so does an error in its turn (MultiDeviceOptions::error_turn). Used from one thread at a
// time.
class COHORT_API MultiDeviceIterator {
 public:
  // A device listed twice gets two turns.
  MultiDeviceIterator(std::unique_ptr<ElementSource> source, std::vector<Device> devices,
                      MultiDeviceOptions options = {});
  MultiDeviceIterator(const Dataset& dataset, std::vector<Device> devices,
                      MultiDeviceOptions options = {});

  std::size_t num_devices() const { return devices_.size(); }
  const ElementSpec& element_spec() const { return source_->spec(); }
  // The next of device i; nullopt once the pipeline has ended and what was dealt to it is drawn,
  // and ever after. Where its turn is that of an element that failed, the error is thrown once.
  std::optional<Nest> next(std::size_t i);
  Optional next_as_optional(std::size_t i);

  // The same in parts: whether there is one, without copying it; its fields or nullptr, for as long
  // as nothing else is called (an error in copying leaves it there); and taking it away. An error
  // in its place is thrown by the first of them that is called, and is then gone.
  bool has(std::size_t i);
  const Fields* front(std::size_t i);
  void pop(std::size_t i);

  // As of the last element taken; those copied ahead are part of it.
  void save(ByteWriter& writer) const;
  void restore(ByteReader& reader);

  // The elements that were dealt and not taken, in the order of dealing, without errors in the
  // place of some; and to begin anew with dealing such.
  std::vector<Fields> undelivered() const;
  void requeue(std::vector<Fields> elements);
  ElementSource& source() { return *source_; }

 private:
  // An element in host memory and, once it was fetched, on its device.
  struct Item {
    std::uint64_t number;  // device number mod R
    Fields host;
    Fields device = {};
    bool is_fetched = false;
    std::exception_ptr error = nullptr;  // in its place
  };
  bool deal_one();
  // For an error of the next element; rethrows it, unless it waits in its device's turn.
  void deal_error();
  void discard_round();
  // Whether device i has an element; deals until it has.
  bool fill(std::size_t i);
  void fetch(std::size_t i, Item& item) const;
  void fetch_ahead(std::size_t i);
  std::vector<const Item*> in_order() const;

  std::unique_ptr<ElementSource> source_;
  std::vector<Device> devices_;
  MultiDeviceOptions options_;
  std::vector<bool> is_fetching_;
  std::vector<std::deque<Item>> queues_;
  std::uint64_t num_dealt_ = 0;
  bool is_at_end_ = false;
  // Found while copying ahead: thrown when its place is reached.
  std::exception_ptr error_ahead_;
};

}  // namespace cohort
