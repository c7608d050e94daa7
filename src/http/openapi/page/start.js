// Shows the document of the server this page came from. No other host is asked for anything: the
// validator's badge is off, and tokens are kept nowhere.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  persistAuthorization: false,
  queryConfigEnabled: false,
  validatorUrl: "none",
});
