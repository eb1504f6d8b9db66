package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"net/http"
	"reflect"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"
)

// call is a request: the name of its method at once, the rest after decode.
type call struct {
	name string
	this types.ManagedObjectReference
	body types.AnyType
}

// readCall finds the name of a call, which is that of the first element in the body of the envelope.
func readCall(envelope []byte) (*call, error) {
	decoder := xml.NewDecoder(bytes.NewReader(envelope))
	inBody := false
	for {
		token, err := decoder.Token()
		if err != nil {
			return nil, fmt.Errorf("the envelope has no body: %w", err)
		}
		start, is := token.(xml.StartElement)
		if !is {
			continue
		}
		if !inBody {
			inBody = start.Name.Local == "Body"
			continue
		}
		var object struct {
			This types.ManagedObjectReference `xml:"_this"`
		}
		if err := decoder.DecodeElement(&object, &start); err != nil {
			return nil, err
		}
		return &call{name: start.Name.Local, this: object.This}, nil
	}
}

func (c *call) decode(envelope []byte) error {
	method, err := simulator.UnmarshalBody(types.TypeFunc(), envelope)
	if err != nil {
		return err
	}
	if method.Name != c.name {
		return errors.New("the envelope has several bodies")
	}
	c.body = method.Body
	return nil
}

// started is the response of every method that starts a task.
type started struct {
	Returnval types.ManagedObjectReference `xml:"returnval"`
}

// newFault makes a fault by the name of its type, which isFault has found good. Where it names an object, it names this
// one: clients can't read a reference to nothing.
func newFault(name string, this types.ManagedObjectReference) types.BaseMethodFault {
	kind, _ := types.TypeFunc()(name)
	fault := reflect.New(kind)
	nameObject(fault.Elem(), this)
	return fault.Interface().(types.BaseMethodFault)
}

func nameObject(value reflect.Value, this types.ManagedObjectReference) {
	for at := 0; at < value.NumField(); at++ {
		field := value.Field(at)
		if field.Type() == reflect.TypeOf(this) {
			field.Set(reflect.ValueOf(this))
		} else if value.Type().Field(at).Anonymous {
			nameObject(field, this)
		}
	}
}

// isFault tells whether there is a fault of this name.
func isFault(name string) bool {
	kind, known := types.TypeFunc()(name)
	return known && reflect.PtrTo(kind).Implements(reflect.TypeOf((*types.BaseMethodFault)(nil)).Elem())
}

// localized is a fault as it is told in tasks and results of checks.
func localized(fault types.BaseMethodFault) types.LocalizedMethodFault {
	kind := reflect.TypeOf(fault).Elem().Name()
	return types.LocalizedMethodFault{Fault: fault, LocalizedMessage: "The operation failed: " + kind}
}

// envelope is what all answers are in; the names are those of the SOAP 1.1 schema.
type envelope struct {
	XMLName xml.Name    `xml:"soapenv:Envelope"`
	Env     string      `xml:"xmlns:soapenv,attr"`
	XSD     string      `xml:"xmlns:xsd,attr"`
	XSI     string      `xml:"xmlns:xsi,attr"`
	Body    interface{} `xml:"soapenv:Body"`
}

// named is a value in an element of this name in the namespace of the vSphere API.
type named struct {
	name  string
	kind  string // its xsi:type; empty: none
	value interface{}
}

func (n named) MarshalXML(e *xml.Encoder, _ xml.StartElement) error {
	start := xml.StartElement{Name: xml.Name{Local: n.name}}
	start.Attr = []xml.Attr{{Name: xml.Name{Local: "xmlns"}, Value: "urn:vim25"}}
	if n.kind != "" {
		start.Attr = append(start.Attr, xml.Attr{Name: xml.Name{Local: "xsi:type"}, Value: n.kind})
	}
	return e.EncodeElement(n.value, start)
}

func writeResponse(w http.ResponseWriter, method string, response interface{}) {
	write(w, http.StatusOK, struct{ Answer named }{named{name: method + "Response", value: response}})
}

func writeFault(w http.ResponseWriter, fault types.BaseMethodFault, text string) {
	kind := reflect.TypeOf(fault).Elem().Name()
	var body struct {
		Fault struct {
			XMLName xml.Name              `xml:"soapenv:Fault"`
			Code    string                `xml:"faultcode"`
			Text    string                `xml:"faultstring"`
			Detail  struct{ Fault named } `xml:"detail"`
		}
	}
	body.Fault.Code = "ServerFaultCode"
	body.Fault.Text = text
	body.Fault.Detail.Fault = named{name: kind + "Fault", kind: kind, value: fault}
	write(w, http.StatusInternalServerError, body)
}

func write(w http.ResponseWriter, status int, body interface{}) {
	text, err := xml.Marshal(envelope{
		Env:  "http://schemas.xmlsoap.org/soap/envelope/",
		XSD:  "http://www.w3.org/2001/XMLSchema",
		XSI:  "http://www.w3.org/2001/XMLSchema-instance",
		Body: body,
	})
	if err != nil {
		log.Panicf("an answer can't be written: %s", err)
	}
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	w.WriteHeader(status)
	w.Write([]byte(xml.Header))
	w.Write(text)
}
