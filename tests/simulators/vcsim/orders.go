package main

import "encoding/json"

// orders are what the tests may ask for.
func (c *center) orders() map[string]order {
	return map[string]order{
		"rule": func(with json.RawMessage) (interface{}, error) {
			var one rule
			if err := json.Unmarshal(with, &one); err != nil {
				return nil, err
			}
			return nil, c.rules.add(one)
		},
		"clear":           func(json.RawMessage) (interface{}, error) { c.rules.clear(); return nil, nil },
		"calls":           func(json.RawMessage) (interface{}, error) { return c.rules.calls(), nil },
		"forget_sessions": func(json.RawMessage) (interface{}, error) { c.sessions.forget(); return nil, nil },
		"session_idle": func(with json.RawMessage) (interface{}, error) {
			var idle float64
			err := json.Unmarshal(with, &idle)
			c.sessions.expire(seconds(idle))
			return nil, err
		},
		"restart": func(with json.RawMessage) (interface{}, error) {
			var closed float64
			if err := json.Unmarshal(with, &closed); err != nil {
				return nil, err
			}
			return nil, c.restart(seconds(closed))
		},
	}
}
